"""What must hold in every simulated swarm, commit by commit."""
