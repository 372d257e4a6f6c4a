"""What of training is on disk: whole or not at all."""
