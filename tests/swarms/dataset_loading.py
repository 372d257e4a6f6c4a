"""A program that loads data sets as a node does: `python -m tests.swarms.dataset_loading HOME BOUND NAME...`."""

import json
import sys
from pathlib import Path


def load_all(home: Path, bound: int, names: list[str]) -> dict[str, str]:
    """What became of each data set: the rows that were kept, or why there are none."""
    from swarmd.errors import SwarmError
    from swarmd.swarms.dataset import write_questions_file
    from swarmd.swarms.options import DatasetSource

    told = {}
    for name in names:
        file = f"{name.replace('/', '-')}.jsonl"
        try:
            write_questions_file(home, file, DatasetSource(name, download_bytes=bound))
            told[name] = f"{(home / file).read_bytes().count(b'answer')} rows"
        except SwarmError as error:
            told[name] = f"{type(error).__name__}: {error.message}\n{error.fix}"
    return told


if __name__ == "__main__":
    print(json.dumps(load_all(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])))
