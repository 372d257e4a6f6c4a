"""The network: records on a hivemind DHT, gossip, and the worker process that runs them.

Rooms import downwards: `store` (records kept for others, look-ups), `p2p` (hivemind and p2pd), `wire` (wire formats),
`identity` (keys). The modules directly in this package hold the worker's logic. They reach the network only through
`swarmd.dht.ports`, so the simulator can run them; `adapters`, `session` and `worker` are the exceptions: they use
hivemind.
"""
