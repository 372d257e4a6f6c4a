"""Which files differ: from where the branch left main, with what is not committed and what git does not know yet."""

from __future__ import annotations

import subprocess
from pathlib import Path


class NoSuchRevision(Exception):
    """Git knows no commit of that name."""


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise NoSuchRevision(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def found(root: Path, *words: str) -> str:
    """What git says, or nothing where it knows no answer."""
    try:
        return git(root, *words)
    except NoSuchRevision:
        return ""


def base_of(root: Path, against: str = "main") -> str:
    """The commit to compare with. On main itself: what was pushed; else, on a clean tree, the commit before."""
    head = git(root, "rev-parse", "HEAD")
    for other in (against, "@{upstream}", f"origin/{against}"):
        common = found(root, "merge-base", "HEAD", other)
        if common and common != head:
            return common
    dirty = git(root, "status", "--porcelain")
    return head if dirty else found(root, "rev-parse", "HEAD~1") or head


def changed_files(root: Path, base: str) -> list[str]:
    """Paths from the root of the tree, those of removed files too."""
    differ = git(root, "diff", "--name-only", "--no-renames", "-z", base)
    unknown = git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted({path for path in (differ + "\0" + unknown).split("\0") if path})
