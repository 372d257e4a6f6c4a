"""A swarm seen by somebody who takes no part in it: its DHT, and its contract."""
