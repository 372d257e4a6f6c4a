"""Checks of this machine: Python, disks, clock, accelerator, sandbox, models to be fetched."""
