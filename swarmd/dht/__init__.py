"""The network: identity, signed records, the supervised DHT node, hints, and the worker process that runs them."""
