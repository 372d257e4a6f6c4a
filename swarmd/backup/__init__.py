"""Backups of a data directory: making, checking, restoring and moving them; the way back from an upgrade; bundles."""
