"""Schemes side by side, in virtual time or in real processes: the same delays, the same data, one kind of result.

What lives here: schemes side by side: `names` which, `simulated` in virtual time, `raced` in real processes, `result`
what both give.
"""
