"""Root, workers and ring nodes: trees in which a parent needs only some of its children, and the ring.

Imports `core`.

- `root`; `tree_worker`, `tree_worker_table`; `ring_node`: the roles, with their states
- `collecting`, `ledger`, `shares`, `redundancy`: how a parent collects from its children, and when it asks a replica
- `attendance`, `model_loading`, `delivering`: the parts of a worker
- `standing_in`: the root computes in place of missing workers
"""
