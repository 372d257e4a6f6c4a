"""Backups of a data directory, restoring and moving them; support bundles."""
