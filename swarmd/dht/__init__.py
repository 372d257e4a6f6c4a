"""The network: records on a hivemind DHT, gossip, and the worker process that runs them.

Rooms import downwards: `store` (records kept for others, look-ups), `p2p` (hivemind and p2pd), `wire` (what crosses the
wire), `identity` (keys). The modules of this room are what the worker decides; they know the network by
`swarmd.dht.ports`, so the simulator runs them too, except `adapters`, `session` and `worker`, which use hivemind.
"""
