"""How nodes find each other: a directory of addresses where the run meets, and those who visit it.

`meeting` is what a node calls, `directory` answers where the run meets, `visiting` asks there, `probing` finds out
which addresses can be reached, `identity` tells runs apart. Imports `net` and what is below.
"""
