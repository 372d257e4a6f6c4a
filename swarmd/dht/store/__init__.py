"""Records kept for others and own ones on disk, looked up, validated, and ranked where room is short."""
