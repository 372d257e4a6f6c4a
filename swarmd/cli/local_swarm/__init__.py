"""`swarmd local`: a swarm of real nodes on this machine."""
