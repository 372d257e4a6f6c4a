"""The kind proposer-solver: models set each other programming problems with tests, and solve them."""
