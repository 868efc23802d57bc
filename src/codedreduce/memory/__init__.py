"""Where vectors lie that other processes of a machine read: arenas of shared memory, and what is lent from them.

`memory` is what a node needs of memory, `arena` implements it by files that processes map, `lending` counts what others
read, `shapes` says where chunks lie. Imports `vectors` and `packed` only.
"""
