"""The chain: the contract, the blocks, and what this node submits."""
