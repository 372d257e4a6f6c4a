"""Outputs of training besides the log: histories, model cards, pictures, trackers, and pushes to the Hub.

These modules read logs; the only event they cause is the outcome of a push.
"""
