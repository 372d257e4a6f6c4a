"""The shell around the core: it turns what happens into events, commits them, and only then acts on their commands."""
