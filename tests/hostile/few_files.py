"""The network worker with a low limit of open files: `python -m tests.hostile.few_files`."""

import runpy

from swarmd.dht import session
from swarmd.dht.p2p import memory_watch

FILES_MAX = 192

if __name__ == "__main__":
    memory_watch.FILES_MAX = session.FILES_MAX = FILES_MAX
    runpy.run_module("swarmd.dht.worker", run_name="__main__")
