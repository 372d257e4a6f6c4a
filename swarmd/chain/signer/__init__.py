"""The program `swarmd signer`: one account that submits for many nodes."""
