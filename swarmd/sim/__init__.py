"""Simulated swarms, seeded, in one thread: the shipped core, shell and chain code on simulated machines and networks.

`swarmd.sim.world.run_simulation(seed)` runs some hours of a swarm in about a second, with crashes, partitions and a
lying network, and checks every commit. The same seed gives the same trace on every machine.
"""
