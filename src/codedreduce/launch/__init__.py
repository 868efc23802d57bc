"""Launching: the processes of a run, on this host, over ssh, or started by another launcher.

Imports `run`, `process` and the packages below them; nothing of `net`.

- `launcher`, `placement`, `progress`, `reasons`: `codedreduce run`; `showing`: the output of processes
- `environment`, `launchers`, `slurm`, `mpi`: rank and rendezvous address of this process, as a launcher sets them
- `gpu_sharing`: one GPU for several processes; `ssh/`: processes on other hosts
"""
