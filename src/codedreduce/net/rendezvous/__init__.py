"""How nodes find each other: a directory of addresses where the run meets, and those who visit it.

Imports `net` and what is below.
"""
