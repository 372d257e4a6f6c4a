"""Care of what a node keeps: archives of a data directory, restoring and moving it, versions of what lies on disk."""
