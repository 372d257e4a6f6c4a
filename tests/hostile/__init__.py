"""Attacks on real nodes, one file for each class; the long forms run with `--soak`."""
