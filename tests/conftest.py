"""What all tests share: a quiet, offline environment with one thread a process."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("COLUMNS", "120")

# A shell that starts a test run in the background has it ignore SIGINT, and what it starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
