"""The kind proposer-solver: models propose programming problems with tests, and solve each other's."""
