"""A taskset of one turn: add two digits."""

import verifiers.v1 as vf


class Sum(vf.TaskData):
    answer: str


class SumTask(vf.Task[Sum]):
    @vf.reward
    async def right(self, task: Sum, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == task.answer)

    @vf.reward(weight=0.25)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 4)


class Sums(vf.Taskset[SumTask]):
    def load(self) -> list[SumTask]:
        return [SumTask(Sum(prompt=f"{a}+{b}=", answer=str(a + b))) for a in range(10) for b in range(10)]


__all__ = ["Sums"]
