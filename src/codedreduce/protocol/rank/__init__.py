"""A rank of a striped run: it computes its blocks, reduces its stripe, and ends every round with the whole sum.

Imports `core`, `leader` and `election`.

- `rank`: the machine; each of its parts owns its data
- a round: `worker`, `workload` (blocks to compute), `exchange` (vectors on their way), `reducer`, `sums`
- `catch_up`, `state_transfer`: a rank that fell behind; `joining`, `leaving`; `audit_checks`
"""
