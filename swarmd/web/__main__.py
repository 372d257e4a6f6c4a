"""`python -m swarmd.web`: the process beside a node, which the daemon starts; with an order, `swarmd dashboard`."""

import sys

from swarmd.web.companion import main, serve_dashboard

sys.exit(serve_dashboard(sys.argv[1]) if len(sys.argv) > 1 else main())
