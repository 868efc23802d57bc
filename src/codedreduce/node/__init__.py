"""One node of a run: its sockets, memory and state machine, a thread that communicates and one that computes.

`node` is the interface for a script or a loop, `driver` the communicating thread, `computing` the computing thread.
`local` runs the first node in this process and forks the others. Imports `net`, `net/rendezvous` and the packages below
them.
"""
