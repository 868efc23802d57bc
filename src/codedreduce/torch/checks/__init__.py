"""What is checked before the first round, so that no gradient is wrong without a word.

`rehearsal` computes some samples together, apart and twice, with `fixed_rng` and `fixed_draws` in the place of random
numbers; `fingerprint` compares samples; `denominators` finds means that differ between samples; `argument_checks` are
mistakes in calls.

May import `gradient`, `training`, `seeding` and `live_table`, besides what lies below `torch`.
"""
