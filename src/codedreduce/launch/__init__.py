"""Launching: the processes of a run, on this machine, over ssh, or as another launcher has started them.

Imports `run`, `process` and what is below; nothing of `net`.

- `launcher`, `placement`, `progress`, `reasons`: `codedreduce run`; `output`, `showing`: what processes print
- `environment`, `launchers`, `slurm`, `mpi`: who this process is, as a launcher says
- `gpu_sharing`: one GPU for several processes; `ssh/`: processes on other machines
"""
