"""The election of a leader, when the previous leader failed or does not answer.

Imports `core` and `leader`.

- `election`: terms, candidates, votes; `voters`: which votes count; `leader_liveness`: whether the leader answers
"""
