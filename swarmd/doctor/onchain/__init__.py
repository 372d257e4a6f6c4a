"""Checks of the chain: endpoints, the contract, and the account that pays."""
