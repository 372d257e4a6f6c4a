"""The daemon, `swarmd run`: runs the shell's loop with a real clock, disk and processes; control socket, signals,
systemd."""
