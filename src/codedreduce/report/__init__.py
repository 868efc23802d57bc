"""Tables and pictures of what plans say and runs did."""
