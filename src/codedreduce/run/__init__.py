"""A run: the agreement of its ranks, what happens in it, and what delays or ends it.

Imports `memory`, `process`, `protocol` and the packages below them.

- `configuration`: what a user configures
- `agreement`, `tuning`, `trainings`, `site`, `quorum`: rendezvous, settings, and when a run may begin
- `world`: the interface that training needs, and its implementation in one process
- `journal`: one stream of events; `delays`, `injected_delays`: models of stragglers; `failures`: failed computations
"""
