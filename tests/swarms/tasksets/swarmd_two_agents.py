"""A taskset with two agents, which have conversations of their own."""

import verifiers.v1 as vf


class PairTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def spoke(self, trace: vf.Trace) -> float:
        return float(bool(trace.last_reply))


class Pairs(vf.Taskset[PairTask]):
    def load(self) -> list[PairTask]:
        return [PairTask(vf.TaskData(prompt="Speak."))]


class PairConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig()
    second: vf.AgentConfig = vf.AgentConfig()


class PairEnv(vf.Env[PairConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.first.run(task)
        await agents.second.run(task)


__all__ = ["PairEnv", "Pairs"]
