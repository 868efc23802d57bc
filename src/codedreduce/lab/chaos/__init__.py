"""Runs of real processes in a lab under a schedule of faults.

`schedule` draws the faults, `disturbing` injects them into the nodes of a lab, `diary` is what the processes record,
`jobs`, `in_numpy` and `in_torch` define what they train, and `chaos_run` combines all of these.
"""
