"""Records kept for others, looked up, validated, and ranked where room is short."""
