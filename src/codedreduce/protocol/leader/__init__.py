"""The leader of a striped run: membership, assignments, and what it does about stragglers.

Imports `core`. The leader is a part of the machine of the rank that leads.

- `members`: the members, ranks with a different model, and whether a rank leads; `participation`: the ranks that take
  part in a round
- `scheduler`: what the leader does in a round; `distribution`: the start of a round
- stragglers: `stragglers`, `missing_sums` decide what to do about late ranks and reducers, and why; `reassignment` does
  it; `assignments`, `pace` hold what it depends on
- `verdicts`: audits: which rank computes which block a second time, and which results are right
"""
