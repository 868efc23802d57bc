"""A run: what its nodes agree on, what happens in it, and what delays or ends it.

Imports `memory`, `process`, `protocol` and what is below.

- `agreement`, `tuning`, `trainings`, `site`, `quorum`: where nodes meet, what they do, and when they may begin
- `world`, `alone`: what training needs of a world, and the world of one process
- `journal`: one stream of what happened; `delays`, `injected_delays`: how late workers are; `failures`: computations
  that fail
"""
