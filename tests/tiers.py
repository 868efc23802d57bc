"""Which tests `make test` runs: all that are quick, and of those with processes, sockets and files one for each fault
and boundary. `make test-all` runs the others, too: labs, clusters, fuzzing, and every other fault.
"""

from __future__ import annotations

#: Folders of which all tests are quick.
QUICK = ("unit", "property", "contract", "simulation")

#: Of the others, by file.
END_TO_END: dict[str, tuple[str, ...]] = {
    "integration/test_audits.py": ("test_whoever_is_always_wrong_is_not_used_any_more",),
    "integration/test_cli_draw.py": ("test_tree_as_text", "test_mistakes_are_one_line"),
    "integration/test_cli_race.py": ("test_table_json_and_report",),
    "integration/test_cli_simulate.py": ("test_same_seed_same_results", "test_trace_and_replay"),
    "integration/test_cli_train.py": ("test_a_training_that_fails_leaves_the_files_that_were_there",),
    "integration/test_failures.py": (
        "test_a_replica_does_what_a_worker_failed_at", "test_what_fails_at_two_ends_the_run_and_names_both",
    ),
    "integration/test_how_runs_end.py": ("test_what_fails_when_the_others_have_ended_fails_the_run",),
    "integration/test_keys.py": (
        "test_a_stranger_at_every_port_changes_nothing",
        "test_a_wrong_secret_is_said_within_seconds_and_the_run_does_not_notice", "test_what_travels_cannot_be_read",
    ),
    "integration/test_launcher.py": (
        "test_a_script_runs_as_root_and_workers", "test_a_killed_worker_does_not_end_the_run",
        "test_interrupting_leaves_a_result_and_nobody_behind", "test_train_writes_model_and_log",
    ),
    "integration/test_lightning.py": ("test_every_rank_ends_as_plain_lightning_whoever_straggles",),
    "integration/test_local.py": (
        "test_a_killed_worker_is_done_without", "test_a_stopped_worker_is_done_without_and_used_again",
        "test_more_dead_than_tolerated_are_stood_in_for", "test_a_killed_ring_worker_ends_the_run",
        "test_a_parent_that_dies_and_returns_is_found_by_its_children",
    ),
    "integration/test_mesh.py": (
        "test_everyone_talks_to_everyone", "test_who_is_gone_is_missed_by_all_and_found_again",
    ),
    "integration/test_meshes.py": (
        "test_a_chunk_that_comes_twice_is_taken_once", "test_a_member_cannot_take_over_another_s_connection",
    ),
    "integration/test_nursery.py": ("test_killed_workers_are_started_again_and_used",),
    "integration/test_ports.py": ("test_few_lines_are_changed", "test_the_table_in_the_docs_is_true"),
    "integration/test_rendezvous.py": (
        "test_all_find_each_other_whatever_the_order_also_where_one_is_slow",
        "test_a_second_process_is_refused_while_the_first_is_there",
    ),
    "integration/test_restarts.py": (
        "test_a_killed_rank_is_started_again_and_used", "test_rank_0_is_killed_and_the_others_go_on",
        "test_who_is_told_to_leave_hands_over_and_is_not_started_again", "test_mistakes_are_one_line",
    ),
    "integration/test_resume.py": (
        "test_in_two_halves_as_in_one", "test_killed_and_started_again_until_it_is_through",
    ),
    "integration/test_snippets.py": ("test_every_block_is_of_a_kind_that_is_tested",),
    "integration/test_strangers.py": ("test_a_run_goes_on_whatever_strangers_say",),
    "integration/test_striped.py": (
        "test_every_rank_has_the_same_bits", "test_one_is_killed", "test_all_others_are_killed",
        "test_one_is_paused_and_comes_back", "test_one_that_fell_far_behind_takes_the_state_of_another",
    ),
    "integration/test_striped_lending.py": (
        "test_a_keeper_is_stopped_before_it_adds_up", "test_nothing_is_left_of_a_run",
    ),
    "integration/test_torch.py": (
        "test_every_step_is_that_of_one_process", "test_an_error_in_the_loop_body_ends_the_run_everywhere",
    ),
    "integration/test_torch_given.py": ("test_a_padded_language_model_has_the_mean_over_its_tokens",),
    "integration/test_torch_loading.py": ("test_the_same_bits_whoever_reads_and_whoever_is_late",),
    "integration/test_torch_mistakes.py": ("test_losses_without_a_graph_are_refused",),
    "integration/test_torch_rehearsal.py": ("test_coupled_samples_are_refused",),
    "integration/test_torch_resume.py": ("test_in_stripes_all_ranks_go_on",),
    "integration/test_torch_striped.py": (
        "test_every_step_is_that_of_one_process", "test_the_same_bits_whoever_straggles",
        "test_the_same_bits_when_one_is_killed", "test_a_break_on_rank_0_ends_it_on_all",
        "test_a_break_elsewhere_is_an_error", "test_ranks_go_on_without_rank_0",
    ),
    "integration/test_tracebacks.py": ("test_a_command_shows_the_traceback_of_a_mistake_if_asked",),
    "integration/test_training.py": ("test_training_is_gradient_descent_whoever_straggles",),
    "integration/test_transformers.py": ("test_the_same_bits_whoever_straggles",),
    "integration/test_transport.py": (
        "test_vectors_and_small_messages_come_through_both_ways",
        "test_one_connection_that_breaks_is_a_new_session_on_both",
        "test_what_is_no_message_costs_its_sender_the_connection",
    ),
    "integration/test_units.py": ("test_fewer_ranks_with_as_many_units",),
    "integration/test_wire.py": ("test_bits_that_flip_on_the_way_are_found_where_nothing_is_encrypted",),
}  # fmt: skip


def is_in_make_test(path: str, name: str) -> bool:
    """Whether `make test` runs a test, of a file below tests/."""
    return path.split("/")[0] in QUICK or name in END_TO_END.get(path, ())
