"""What a node's log says, followed through the fold: swarm, stages, history, stories."""
