"""The daemon, `swarmd run`: the shell's loop with real clock, disk and processes; control socket, signals, systemd."""
