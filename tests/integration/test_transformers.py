"""Transformers: the trainer gives what plain `Trainer` does, on every rank, whoever straggles or falls behind."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from transformers import EarlyStoppingCallback, GPT2LMHeadModel, Trainer, TrainerCallback

from codedreduce.errors import UsageError
from codedreduce.transformers import CodedReduceTrainer

from .test_torch_striped import digest
from .torch_model import run_forked
from .transformers_model import BATCH, EACH, bert, gpt, rank, trainer

RANKS = 3
KINDS = {"a classifier": bert, "a padded language model": gpt}


def fit(folder: Path, model: torch.nn.Module, *, resume: str | None = None, **options) -> CodedReduceTrainer:
    """Train with our trainer, and leave what came of it, one file a rank."""
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size > 1:
        os.environ["LOCAL_RANK"] = os.environ["RANK"]  # as launchers say; Transformers then connects by itself
    ours = trainer(CodedReduceTrainer, folder, model, options.pop("each", BATCH // size), **options)
    ours.train(resume_from_checkpoint=resume)
    assert ours.is_world_process_zero() == (rank() == 0)
    leave(folder, ours)
    return ours


def leave(folder: Path, of: Trainer) -> None:
    history = [{name: one[name] for name in one if "second" not in name and "runtime" not in name} for one in
               of.state.log_history]  # fmt: skip
    (folder / f"{rank()}.json").write_text(
        json.dumps(
            {
                "bits": digest(*of.model.parameters()), "step": of.state.global_step, "epoch": of.state.epoch,
                "best": Path(of.state.best_model_checkpoint or "").name, "score": of.state.best_metric,
                "history": history,
            }
        )
    )  # fmt: skip
    torch.save(of.model.state_dict(), folder / f"{rank()}.pt")


def outcome_of(folder: Path, ranks: int = RANKS) -> dict:
    """What all ranks ended with, which must be the same."""
    found = [json.loads((folder / f"{one}.json").read_text()) for one in range(ranks)]
    assert all(one == found[0] for one in found), found
    return found[0]


def run(script: Callable[[], object], ranks: int = RANKS, **variables: str) -> None:
    found = run_forked(script, ranks, {f"CODEDREDUCE_{key.upper()}": variables[key] for key in variables})
    assert found.codes == dict.fromkeys(range(ranks), 0), found.errors


def assert_alike(ours: Path, theirs: Path) -> None:
    """Parameters to 1e-6, and all that was logged."""
    mine, plain = torch.load(ours / "0.pt"), torch.load(theirs / "0.pt")
    for name in plain:
        torch.testing.assert_close(mine[name], plain[name], rtol=1e-6, atol=1e-6)
    found, expected = (json.loads((folder / "0.json").read_text()) for folder in (ours, theirs))
    assert {name: found[name] for name in ("step", "epoch", "best")} == {
        name: expected[name] for name in ("step", "epoch", "best")
    }
    assert len(found["history"]) == len(expected["history"])
    for one, other in zip(found["history"], expected["history"], strict=True):
        other.pop("total_flos", None), one.pop("total_flos", None)  # not counted
        assert one == pytest.approx(other, rel=1e-5)


@pytest.fixture(scope="module", params=KINDS)
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Callable]:
    """The plain `Trainer`, and the model."""
    folder, model = tmp_path_factory.mktemp("plain"), KINDS[request.param]
    theirs = trainer(Trainer, folder, model())
    theirs.train()
    leave(folder, theirs)
    return folder, model


def test_every_rank_ends_as_a_plain_trainer_whoever_straggles(tmp_path: Path, plain: tuple[Path, Callable]) -> None:
    """A classifier whose loss is a mean over samples, and a language model whose mean is over tokens of all ranks."""
    folder, model = plain
    run(lambda: fit(tmp_path, model()), inject="stalls:0.2:0.2s")
    assert_alike(tmp_path, folder)
    outcome_of(tmp_path)
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {
        f"checkpoint-{EACH * epoch}" for epoch in (1, 2, 3)
    }
    files = {path.name for path in (tmp_path / f"checkpoint-{EACH}").iterdir()}
    assert files == {path.name for path in (folder / f"checkpoint-{EACH}").iterdir()}


def test_the_same_bits_whoever_straggles(tmp_path: Path) -> None:
    """With dropout, shuffled, batches accumulated, and a state that Transformers prepared for torch.distributed."""
    found = []
    options = {
        "optim": "adamw_torch", "gradient_accumulation_steps": 2, "each": 4, "use_cpu": True, "plain_arguments": True,
        "train_sampling_strategy": "random", "num_train_epochs": 2,
    }  # fmt: skip
    for inject in ("calm", "stalls:0.3:0.2s"):
        run(lambda: fit(tmp_path, gpt(dropout=0.1), **options), inject=inject)
        found.append(outcome_of(tmp_path))
    assert found[0] == found[1]
    assert found[0]["step"] == 2 * EACH


class Waits(TrainerCallback):
    """Holds one rank up after a step, until rank 0 is so far that it cannot be caught up with."""

    def __init__(self, folder: Path, after: int, until: int) -> None:
        self._sign, self._after, self._until = folder / "far", after, until
        self.seen: list[int] = []

    def on_step_end(self, args, state, control, **of) -> None:
        self.seen.append(state.global_step)
        if rank() == 0 and state.global_step == self._until:
            self._sign.touch()
        while rank() == 2 and state.global_step == self._after and not self._sign.exists():
            time.sleep(0.01)


def test_one_that_fell_behind_goes_on_where_the_others_are(tmp_path: Path) -> None:
    """What the trainer counts, what it logged and what callbacks remember come with the state of another."""
    patience = EarlyStoppingCallback(50)

    def script() -> None:
        waits = Waits(tmp_path, after=8, until=103)
        # 24 epochs; it goes on in the middle of another one
        fit(tmp_path, bert(), num_train_epochs=24, callbacks=[waits, patience], save_strategy="no", logging_steps=10,
            load_best_model_at_end=False)  # fmt: skip
        (tmp_path / f"patience of {rank()}").write_text(str(patience.early_stopping_patience_counter))
        if rank() == 2:
            assert set(range(12, 100)).isdisjoint(waits.seen), str(waits.seen)

    run(script)
    found = outcome_of(tmp_path)
    assert (found["step"], found["epoch"]) == (24 * EACH, 24)
    losses = [one for one in found["history"] if "loss" in one]
    assert [one["epoch"] for one in losses] == [2.0 * number for number in range(1, 13)]
    assert len({(tmp_path / f"patience of {one}").read_text() for one in range(RANKS)}) == 1


def test_the_one_that_leads_ends_it_on_all(tmp_path: Path) -> None:
    class Stops(TrainerCallback):
        def on_step_end(self, args, state, control, **of) -> None:
            control.should_training_stop |= rank() == 0 and state.global_step == 7

    run(lambda: fit(tmp_path, bert(), callbacks=[Stops()], load_best_model_at_end=False))
    found = [json.loads((tmp_path / f"{one}.json").read_text()) for one in range(RANKS)]
    assert {(one["bits"], one["step"]) for one in found} == {(found[0]["bits"], 7)}


def test_a_rank_that_is_killed_is_not_missed(tmp_path: Path) -> None:
    """Also the one that saves: another does."""

    class Dies(TrainerCallback):
        def on_step_end(self, args, state, control, **of) -> None:
            if rank() == 0 and state.global_step == EACH + 2:
                os.kill(os.getpid(), signal.SIGKILL)

    def script() -> None:
        ours = trainer(CodedReduceTrainer, tmp_path, bert(), 8, callbacks=[Dies()], load_best_model_at_end=False)
        ours.train()
        leave(tmp_path, ours)

    found = run_forked(script, RANKS, {})
    assert found.codes == {0: -signal.SIGKILL, 1: 0, 2: 0}, found.errors
    ends = [json.loads((tmp_path / f"{one}.json").read_text()) for one in (1, 2)]
    assert ends[0] == ends[1]
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {
        f"checkpoint-{EACH * epoch}" for epoch in (1, 2, 3)
    }


def test_an_error_where_it_is_led_costs_no_more_than_a_kill(tmp_path: Path) -> None:
    """The others go on, and have all rounds."""

    class Raises(TrainerCallback):
        def on_step_end(self, args, state, control, **of) -> None:
            if rank() == 0 and state.global_step == EACH + 2:
                raise RuntimeError("my own bug")

    def script() -> None:
        ours = trainer(CodedReduceTrainer, tmp_path, bert(), 8, callbacks=[Raises()], load_best_model_at_end=False)
        ours.train()
        leave(tmp_path, ours)

    found = run_forked(script, RANKS)
    assert found.codes == {0: 1, 1: 0, 2: 0}, found.errors
    ends = [json.loads((tmp_path / f"{one}.json").read_text()) for one in (1, 2)]
    assert ends[0] == ends[1]
    assert ends[0]["step"] == 3 * EACH


def test_checkpoints_of_one_are_gone_on_from_by_the_other(tmp_path: Path) -> None:
    """In the middle of an epoch: ours ends with the bits of a run that was not interrupted."""
    middle = {
        "save_strategy": "steps", "save_steps": 8, "eval_strategy": "no", "load_best_model_at_end": False,
        "callbacks": [],
    }  # fmt: skip
    plain, other, ours = (tmp_path / name for name in ("plain", "other", "ours"))
    for folder in (plain, other, ours):
        folder.mkdir()

    def plainly(folder: Path, resume: Path | None = None) -> None:
        theirs = trainer(Trainer, folder, gpt(), **middle)
        theirs.train(resume_from_checkpoint=resume and str(resume))
        leave(folder, theirs)

    plainly(plain)
    fit(ours, gpt(), **middle)
    assert_alike(ours, plain)
    bits = outcome_of(ours, 1)["bits"]

    plainly(plain, plain / "checkpoint-8")
    plainly(other, ours / "checkpoint-8")
    assert_alike(other, plain)
    fit(ours, gpt(), resume=str(ours / "checkpoint-8"), **middle)
    assert outcome_of(ours, 1)["bits"] == bits
    fit(ours, gpt(), resume=str(plain / "checkpoint-8"), **middle)
    assert_alike(ours, plain)


def sums_of_squares(outputs, labels: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:
    """A loss of a script's own, over the tokens that count."""
    chosen = torch.nn.functional.cross_entropy(outputs.logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    return (chosen**2).sum() / (num_items_in_batch if num_items_in_batch is not None else labels[:, 1:].ne(-100).sum())


@pytest.mark.parametrize("options", [{"label_smoothing_factor": 0.1}, {"compute_loss_func": sums_of_squares}])
def test_other_losses(tmp_path: Path, options: dict) -> None:
    short = {"num_train_epochs": 1, "save_strategy": "no", "load_best_model_at_end": False, **options}
    for name in ("plain", "ours"):
        (tmp_path / name).mkdir()
    theirs = trainer(Trainer, tmp_path / "plain", gpt(), **short)
    theirs.train()
    leave(tmp_path / "plain", theirs)
    fit(tmp_path / "ours", gpt(), **short)
    assert_alike(tmp_path / "ours", tmp_path / "plain")


class WithPenalty(GPT2LMHeadModel):
    """Adds something to the loss that belongs to no token."""

    def forward(self, *args, **named):
        found = super().forward(*args, **named)
        found.loss = found.loss + self.lm_head.weight.square().sum()
        return found


def test_what_would_be_wrong_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither divided by the number of items"):
        fit(tmp_path, WithPenalty(gpt().config), remove_unused_columns=False)
    with pytest.raises(UsageError, match="a step has 200 samples over all ranks, but an epoch only 100"):
        fit(tmp_path, gpt(), each=200, dataloader_drop_last=True)
    with pytest.raises(UsageError, match="auto_find_batch_size=True is not supported"):
        fit(tmp_path, gpt(), auto_find_batch_size=True)
    with pytest.raises(UsageError, match="no rank sees all inputs"):
        fit(tmp_path, gpt(), include_num_input_tokens_seen="all")
    with pytest.raises(UsageError, match="LengthGroupedSampler can only be iterated"):
        fit(tmp_path, gpt(), train_sampling_strategy="group_by_length")
