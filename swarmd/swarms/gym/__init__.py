"""Tasks of reasoning-gym, swarmd's own among them, with curricula."""
