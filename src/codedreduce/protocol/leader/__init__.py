"""The leader of a striped run: who is a member, who computes what, who is late, and what is done about it.

Imports `core`. The leader is a part of the machine of the rank that leads.

- `members`: who is in, and the office of the leader; `participation`: who takes part in a round
- `drift`: who has another model
- `scheduler`: what the leader does in a round, with its policy beside: `round_start`, `distribution`, `assignments`
- who is late: `stragglers`, `pace`, `links`; and then: `reassignment`, `relief`, `missing_sums`
- `verdicts`: audits: who computes which block a second time, and who was right
"""
