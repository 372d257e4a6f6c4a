"""`python -m tests.soak`: stop and start a real node many times; exit code 1 where anything is left behind."""

import argparse
import os
import signal
import sys

from tests.soak.stops import LeftBehind, Rhythm, soak


def main() -> int:
    """Run as the command line says. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--stops", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: %(default)s)")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background it is ignored, by children too
    try:
        tally = soak(asked.stops, asked.seed, Rhythm(), tell=lambda line: print(line, flush=True))
    except LeftBehind as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(tally)
    return 0


if __name__ == "__main__":
    sys.exit(main())
