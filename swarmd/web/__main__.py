"""`python -m swarmd.web`: a node's web process, which the daemon starts."""

import sys

from swarmd.web.companion import main

sys.exit(main())
