"""The page, the HTTP interface and the metrics of a node or a swarm: a separate process that reads a log or the DHT.

It is read-only: no request changes a state, and its end does not affect the node.
"""
