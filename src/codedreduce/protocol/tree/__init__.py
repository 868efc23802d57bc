"""A root, workers and ring nodes: trees whose parents need only some of their children, and the ring.

Imports `core`.

- `root`, `root_table`; `tree_worker`, `tree_worker_table`; `ring_node`: the roles, with their states
- `collecting`, `ledger`, `shares`, `redundancy`: what a parent does with its children, and when it asks a second one
- `attendance`, `model_loading`, `delivering`: the parts of a worker
- `standing_in`: what the root does for workers that are missing
"""
