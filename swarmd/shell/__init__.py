"""A node's logic around the core, without any I/O; the daemon and the simulator both run it."""
