"""The gradient of a unit: a forward and a backward pass over some samples, written into a vector.

`unit_gradient` does it. `loss_output` reads what the script's `losses` returns; `staging` adds gradients up on a
device; `batch_norm` sums running statistics over the batch; `grad_scaler` sees scaled losses; `compilation` has one
process of a host compile at a time; `torch_arithmetic` is a digest of what this machine's PyTorch computes.

May import `training`, `layout`, `seeding`, `device` and `data`, besides what lies below `torch`.
"""
