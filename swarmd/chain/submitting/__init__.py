"""Submissions, each brought about exactly once: attempts, senders, tracking, and how they end."""
