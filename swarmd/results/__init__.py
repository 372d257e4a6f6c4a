"""Where a node's figures and models go besides its log: trackers, the Hub, pictures.

Reads logs, and feeds nothing back but what became of a push.
"""
