"""Backups of a data directory: making, checking, restoring and moving them; bundles."""
