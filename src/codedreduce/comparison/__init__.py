"""Schemes side by side, in virtual time or in real processes: the same delays, the same data, one kind of result.

`selection` names the schemes, `simulated_runs` runs them in virtual time, `race_runs` in real processes; `result` is
what both return.
"""
