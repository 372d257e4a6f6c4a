"""The verbs that look at a node or a swarm and change nothing."""
