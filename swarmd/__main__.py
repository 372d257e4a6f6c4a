"""`python -m swarmd` is the `swarmd` command."""

from swarmd.cli import main

main()
