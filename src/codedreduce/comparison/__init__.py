"""Schemes side by side, in virtual time or in real processes: the same delays, the same data, one kind of result."""
