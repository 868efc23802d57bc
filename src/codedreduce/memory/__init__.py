"""Where vectors lie that other processes of a machine read: arenas of shared memory, and what is lent from them.

Imports `vectors` and `packed` only.
"""
