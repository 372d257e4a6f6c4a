"""`python -m swarmd.cli` is the `swarmd` command."""

from swarmd.cli import main

main()
