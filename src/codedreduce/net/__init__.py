"""Messages between nodes: sockets, sessions, keys, and their bytes on the wire.

Imports `run`, `memory`, `process` and what is below; nothing of `node`.

- `carrier`: what all sockets of a node have in common; `transport`: topologies (all to all, tree, ring)
- `sessions`, `frames`, `limits`, `sockets`: turn two connections into messages that arrive as they were sent
- `pending_connections`: connections of unidentified senders
- `keys`: authentication and encryption; `buffers`: where vectors lie, and what they are on the wire
- `rendezvous/`: how nodes find each other
"""
