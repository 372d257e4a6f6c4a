"""What a node does around its core, without any input or output: the daemon and the simulator drive the same."""
