"""The reference server: a frozen model that computes log-probabilities for trainers."""
