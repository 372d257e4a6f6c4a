"""The chain: the contract, the blocks, and what this node submits."""

import sys

import py_ecc  # noqa: F401  before eth_account and web3 import it

# py_ecc, which they load for BLS keys that nobody uses here, raises the interpreter's limit on recursion a hundredfold.
# Then some thousand brackets from an endpoint or a client overflow the C stack in a JSON parser, and end the process.
RECURSION_LIMIT = 1000

sys.setrecursionlimit(RECURSION_LIMIT)
