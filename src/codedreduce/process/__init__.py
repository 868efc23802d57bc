"""This process and others of its host: how they start, end, report to their launcher, and keep a secret.

Imports nothing of a run.

- `processes`, `nursery`, `restarts`: starting and restarting processes; `termination`: leaving on request
- `telling`: reports of a process to its launcher; `error_lines`: errors as one line each
- `addresses`, `private_folder`, `secrets`, `arithmetic`: properties of this host and its user
"""
