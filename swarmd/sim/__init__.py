"""Simulated swarms, seeded, in one thread: the shipped core, shell and chain code on simulated machines and networks.

`swarmd.sim.world.run_simulation(seed)` plays some hours of a swarm's life in about a second, with crashes, partitions
and lies of the network in it, and checks every commit. The same seed gives the same trace on every machine.
"""
