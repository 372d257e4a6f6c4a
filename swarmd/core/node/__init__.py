"""What a node itself does: its rounds and stages, workers, skipped rounds, pauses, and what follows a restore."""
