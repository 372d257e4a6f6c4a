"""What people and machines read of a node, made from events and states: status, metrics, log lines, stories."""
