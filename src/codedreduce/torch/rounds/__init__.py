"""The trainings of one run: which round is for which of them, and what surrounds each round.

`shared_run` is the run, `run_trainings` its trainings, `roles` what a process does in it: compute alone, be a rank, or
be a tree's root or worker. `requests` counts what each training has asked for and compares that between ranks,
`requested_gradient` computes it. `step` is what the loop body receives; `loop_body` and `loop_exit` check what it does.
`model_replica` is a model and its optimizer as bytes.

Imports all other rooms of `torch`, but not the files beside them.
"""
