"""A model as a vector: its parameters, and what comes with a gradient.

`layout` says where in a vector each parameter, metric and loss lies; `loss_output` reads what the script's `losses`
returns; `batch_norm` sums running statistics over the batch; `seeding` makes random generators follow from the seed and
the round.

Imports nothing of `torch`, only what lies below it.
"""
