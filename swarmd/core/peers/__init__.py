"""What a node concludes about others: contradicting records."""
