"""Messages to a node's operator about changes of its health."""
