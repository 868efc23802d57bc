"""Vectors that stay on a GPU: read there by the other processes of the host, and added up there.

`device_memory` decides whether that is possible, `device_arena` shares regions by file, `tensors` makes tensors
vectors, `device_sums` and `kernels` add, `pinned` is memory of the host for copies, `pacing` keeps the host one pass
ahead, `cuda` calls CUDA's runtime. Imports nothing else of `torch`.
"""
