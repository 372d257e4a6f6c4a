"""The simulated ports: chain, DHT, disk, workers."""
