"""A node's own way: its rounds and workers, what it skips, pauses and takes up again."""
