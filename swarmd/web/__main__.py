"""`python -m swarmd.web`: the process beside a node, which the daemon starts; with an order, `swarmd dashboard`."""

import sys

if len(sys.argv) > 1:
    from swarmd.web import standalone

    sys.exit(standalone.main(sys.argv[1]))
else:
    from swarmd.web import companion

    sys.exit(companion.main())
