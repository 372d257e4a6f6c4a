"""The chain: reading its blocks and the swarm's contract, and submitting transactions."""

import sys

import py_ecc  # noqa: F401  before eth_account and web3 import it

# These modules load py_ecc for BLS keys, which are not used here, and py_ecc raises the interpreter's recursion limit a
# hundredfold. Some thousand brackets from an endpoint or a client would then overflow the C stack in a JSON parser,
# which
# ends the process. So the limit is reset.
RECURSION_LIMIT = 1000

sys.setrecursionlimit(RECURSION_LIMIT)
