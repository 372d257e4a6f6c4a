"""Communication between the daemon and its worker processes: messages, frames, and a worker's main loop."""
