"""Figures: metrics counted from events, readings, and their export."""
