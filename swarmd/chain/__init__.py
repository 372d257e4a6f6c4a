"""The chain: reading its blocks and the swarm's contract, and submitting transactions."""

import sys

import py_ecc  # noqa: F401  before eth_account and web3 import it

# They load py_ecc for BLS keys, which are not used here, and py_ecc raises the interpreter's recursion limit a
# hundredfold. Then some thousand brackets from an endpoint or a client overflow the C stack in a JSON parser, which
# ends the process. So the limit is put back.
RECURSION_LIMIT = 1000

sys.setrecursionlimit(RECURSION_LIMIT)
