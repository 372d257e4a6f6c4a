"""On PYTHONPATH of whole nodes: hides what only `swarmd[lora]` and `swarmd[gpu]` install, as on a plain installation.

transformers and TRL import peft and bitsandbytes wherever they are installed: 800 modules and 2 of the 9 seconds of
processor time in which a trainer starts, and nothing that these nodes use.
"""

import sys

for name in ("bitsandbytes", "peft"):
    sys.modules[name] = None  # to importlib this means that there is no such module
