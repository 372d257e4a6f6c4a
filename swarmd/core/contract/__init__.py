"""Swarms whose rounds a contract keeps: its clock, its log entries, submissions and votes."""
