"""Memory for vectors that other processes of the host read: shared-memory arenas, and what a rank lends from its arena.

`memory` defines what a node needs of memory, and where chunks lie. `arena` implements it with files that processes map.
`lending` tracks which slots other ranks may still read. Imports `vectors` and `packed` only.
"""
