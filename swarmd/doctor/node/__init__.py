"""Checks of the node itself: configuration, identity, event log, unit, and the daemon that runs."""
