"""The protocol over ZeroMQ: one process a node, a thread that talks and a thread that computes."""
