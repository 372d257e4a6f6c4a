"""A taskset without end: say a number back."""

import itertools
from collections.abc import Iterator

import verifiers.v1 as vf


class EchoTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def same(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == trace.task.data.prompt)


class Echoes(vf.Taskset[EchoTask]):
    INFINITE = True

    def load(self) -> Iterator[EchoTask]:
        return (EchoTask(vf.TaskData(prompt=str(number))) for number in itertools.count())


__all__ = ["Echoes"]
