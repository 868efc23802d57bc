"""This process and others of its machine: how they start, end, speak to their launcher, and keep a secret.

Imports nothing of a run.

- `processes`, `command`, `nursery`, `restarts`: starting others, and again; `termination`: being told to leave
- `telling`: what a process tells its launcher; `error_lines`: errors as one line each
- `addresses`, `private_folder`, `secrets`, `arithmetic`: what this machine and its user have
"""
