"""The verbs that make, run and keep a node."""
