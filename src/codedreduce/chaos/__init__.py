"""Real processes, of which something is always killed, stopped or cut off, and what becomes of the run."""
