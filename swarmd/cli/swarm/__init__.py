"""`swarmd swarm` and `swarmd join`: make a swarm, look at it, see to it, join one."""
