"""The leader of a striped run: membership, assignments, and what it does about stragglers.

Imports `core`. The leader is a part of the machine of the rank that leads.

- `members`: the members, ranks with a different model, and whether a rank leads; `participation`: the ranks that take
  part in a round
- `scheduler`: what the leader does in a round; its policy is in `round_start`, `distribution`, `assignments`
- stragglers: `stragglers`, `pace` detect them; `reassignment`, `assignments`, `missing_sums` deal with them
- `verdicts`: audits: which rank computes which block a second time, and which results are right
"""
