"""A seeded swarm in one thread: the real core on simulated machines, disks, networks and trainers.

`swarmd.sim.world.run(seed)` plays some hours of a swarm's life in about a second, with crashes, partitions and lies of
the network in it, and checks every commit. The same seed gives the same trace on every machine.
"""
