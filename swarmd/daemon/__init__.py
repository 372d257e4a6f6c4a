"""The daemon, `swarmd run`: drives the shell with a clock, a disk and processes; control socket, signals, systemd."""
