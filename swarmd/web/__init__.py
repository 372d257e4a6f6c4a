"""The page, the HTTP interface and the metrics of a node or a swarm: a process of its own that reads a log or the DHT.

It never feeds anything back: no request changes a state, and its end is nothing to the node.
"""
