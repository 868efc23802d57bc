"""Comparisons of schemes, in virtual time or in real processes, with the same delays and the same data.

`selection` names the schemes, `simulated_runs` runs them in virtual time, and `race_runs` in real processes. `result`
is the type that both return.
"""
