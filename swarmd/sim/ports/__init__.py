"""The simulated ports of the shipped workers: chain, DHT, gossip, disk, processes."""
