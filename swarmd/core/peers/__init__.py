"""What a node concludes about others: the coordinator's conduct, peers' claims, contradicting records."""
