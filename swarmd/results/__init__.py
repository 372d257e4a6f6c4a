"""What becomes of training besides the log: histories, model cards, pictures, trackers, and pushes to the Hub.

These modules read logs, and report nothing back except the outcome of a push.
"""
