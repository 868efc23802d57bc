"""Worlds: what runs the machines of the protocol."""
