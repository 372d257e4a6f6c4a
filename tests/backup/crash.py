"""A process that dies before any chosen step of what it does to the disk."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

STEPS = ("rename", "replace", "unlink", "rmdir", "mkdir", "link", "fsync")


class Crash(BaseException):
    """Nothing catches it but what would run in a dying process, and that finds the disk gone."""


@contextlib.contextmanager
def dying(step: int) -> Iterator[Callable[[], bool]]:
    """Crash at step number `step`, from 0, and at every later one. Gives what says whether it came to that."""
    done = 0

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal done
            done += 1
            if done > step:
                raise Crash
            return work(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, counted(getattr(os, name)))
        with contextlib.suppress(Crash):
            yield lambda: done > step
