"""systemd units for nodes: written, explained, installed and removed."""
