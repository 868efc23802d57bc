"""The election of a leader, when the one before it is gone or does not answer.

Imports `core` and `leader`.

- `election`: terms, candidates, votes; `voters`: whose vote counts; `leader_liveness`: whether the leader answers
"""
