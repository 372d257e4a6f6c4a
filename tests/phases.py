"""`python tests/phases.py TARGET ...`: makes targets one after another, and says at the end what each of them took.

It ends at the first that fails, with its exit code. Only the standard library: the first targets bring the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time


def make(target: str) -> int:
    return subprocess.run([os.environ.get("MAKE", "make"), "--no-print-directory", target]).returncode


def run(targets: list[str]) -> int:
    took: dict[str, float] = {}
    code = 0
    for target in targets:
        print(f"== {target}", flush=True)
        began = time.monotonic()
        code = make(target)
        took[target] = time.monotonic() - began
        os.environ["PROGRAMS"] = "seen to"  # once is enough
        if code:
            break
    print(
        f"== {'failed in ' + target if code else 'all passed'}, {sum(took.values()):.0f} s: {table(took)}", flush=True
    )
    return code


def table(took: dict[str, float]) -> str:
    return ", ".join(f"{target} {seconds:.0f}" for target, seconds in took.items())


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
