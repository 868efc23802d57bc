"""A rank of a striped run: computes its blocks, reduces its stripe, and ends every round with the whole sum.

Imports `core`, `leader` and `election`.

- `rank`: the machine; its parts own what they are about
- a round: `worker`, `workload` (blocks that are computed), `exchange` (vectors on their way), `reducer`, `stripes`,
  `sums`, `sum_buffers`
- `catch_up`, `state_transfer`: a rank that fell behind; `joining`, `leaving`; `audit_checks`
"""
