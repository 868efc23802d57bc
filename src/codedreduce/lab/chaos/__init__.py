"""Real processes, of which something is always killed, stopped or cut off, and what becomes of the run.

What lives here: `schedule` what goes wrong when, `disturbing` who does it to a lab's nodes, `diary` what processes
write down, `jobs`, `in_numpy` and `in_torch` what they train, `chaos_run` all of it together.
"""
