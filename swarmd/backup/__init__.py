"""Backups of a data directory, with restore and move; support bundles."""
