"""Vectors that stay on a GPU: read there by the other processes of the machine, and added up there."""
