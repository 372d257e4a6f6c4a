"""The proposer-solver swarm: models set each other programming problems with tests, and solve them."""
