"""Messages between nodes: sockets, sessions, keys, and their bytes on the wire.

Imports `run`, `memory`, `process` and what is below; nothing of `node`.

- `carrier`: messages to and from neighbours of a tree or ring; `mesh`: to and from all others
- `chunks`, `buffers`: vectors on the wire, and where they lie
- `connections`: which exist, and with which neighbour; `pending_connections`: those of unidentified senders
- `sessions`, `frames`, `limits`, `sockets`: turn two connections into messages that arrive as they were sent
- `keys`: authentication and encryption
- `rendezvous/`: how nodes find each other
"""
