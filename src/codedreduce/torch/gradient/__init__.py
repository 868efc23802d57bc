"""The gradient of a unit: a forward and a backward pass over some samples, written into a vector.

`unit_gradient` does it; `staging` adds gradients up on a device; `torch_arithmetic` is a digest of what PyTorch
computes on this host.

May import `training`, `model`, `data` and `device`, besides what lies below `torch`.
"""
