"""`python -m swarmd.web`: the process beside a node, which the daemon starts."""

import sys

from swarmd.web.companion import main

sys.exit(main())
