"""A node's identity: its key, signatures, backups, and proof of work."""
