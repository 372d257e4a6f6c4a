"""The process that pushes a model: `python -m swarmd.results.push`, an order on stdin, the outcome on stdout.

Everything of a push is one commit, made by `create_commit`: whoever downloads the model gets all of it or what was
there before. (`upload_folder` may split a folder over several commits.)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from swarmd.results.card import CardSubject, make_card
from swarmd.results.history import read_history
from swarmd.results.hub import ADAPTERS, PushOrder, PushOutcome

NICENESS = 10
README = "README.md"


def push(order: PushOrder) -> PushOutcome:
    """Write the card into the snapshot and put it on the Hub. Raises whatever reading the log and the library raise."""
    from huggingface_hub import CommitOperationAdd, HfApi

    snapshot = Path(order.snapshot)
    history = read_history(Path(order.data), order.trained)
    adapters = (snapshot / ADAPTERS).exists()
    subject = CardSubject(order.kind, order.base, adapters, order.repo, order.revision, order.questions)
    (snapshot / README).write_text(make_card(history, subject), encoding="utf-8")
    names = sorted(str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file())
    api = HfApi(token=order.token, library_name="swarmd")
    api.create_repo(order.repo, repo_type="model", exist_ok=True)
    commit = api.create_commit(
        order.repo,
        operations=[CommitOperationAdd(path_in_repo=name, path_or_fileobj=snapshot / name) for name in names],
        commit_message=f"Round {order.trained.round}",
        repo_type="model",
    )
    return PushOutcome(revision=commit.oid, url=commit.commit_url)


def main() -> None:
    """Read the order, push, answer. An error is an answer too; only its first line is told."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the library prints
    os.nice(NICENESS)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=PushOrder)
    try:
        outcome = push(order)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        outcome = PushOutcome(error=f"{type(error).__name__}: {lines[0]}")
    with os.fdopen(answers, "wb") as out:
        out.write(msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()
