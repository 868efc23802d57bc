"""Messages between nodes: sockets, sessions, keys, and the bytes on them.

Imports `run`, `memory`, `process` and what is below; nothing of `node`.

- `carrier`: what all sockets of a node have in common; `mesh` (all to all), `transport` (tree, ring): which there are
- `sessions`, `frames`, `seals`, `limits`, `sockets`: from two connections to messages that are what was sent
- `pending_connections`: connections that have not proved whose they are
- `keys`: who is let in; `buffers`: where vectors lie, and what they are on the wire
- `rendezvous/`: how nodes find each other
"""
