"""One node of a run: its sockets, memory and machine, a thread that talks and one that computes.

`node` is what a script or a loop uses, `driver` the thread that talks, `computing` the one that computes. Imports
`net`, `net/rendezvous` and what is below. `local` has the first node in this process and forks the others.
"""
