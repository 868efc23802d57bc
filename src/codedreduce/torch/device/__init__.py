"""Vectors that stay on a GPU, where the processes of the host read and sum them.

`device_memory` decides whether that is possible, `device_arena` shares regions by file, `tensors` lets tensors serve as
vectors, `device_sums` and `kernels` add, `pinned` is host memory for copies, `cuda` calls CUDA's runtime.
Imports nothing else of `torch`.
"""
