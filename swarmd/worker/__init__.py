"""How the daemon and its worker processes talk: messages, frames, and the loop a worker runs."""
