"""Nodes of the chain: JSON-RPC with failover, URLs that may be shown, and news of the head."""
