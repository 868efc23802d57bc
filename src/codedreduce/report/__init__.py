"""Tables and figures of plans and runs."""
