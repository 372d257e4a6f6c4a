"""A taskset of several turns: the environment is the user, and says of each guess whether it is too small."""

import re

import verifiers.v1 as vf


def read_digit(text: str) -> str:
    """The last digit of a reply."""
    return ("".join(re.findall(r"[0-9]", text)) or "-")[-1]


class Number(vf.TaskData):
    number: int


class NumberTask(vf.Task[Number]):
    @vf.reward
    async def found(self, task: Number, trace: vf.Trace) -> float:
        return float(read_digit(trace.last_reply) == str(task.number))


class Numbers(vf.Taskset[NumberTask]):
    def load(self) -> list[NumberTask]:
        return [NumberTask(Number(number=number, name=f"number {number}")) for number in range(10)]


class GuessingConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()


class GuessingEnv(vf.Env[GuessingConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as talk:
            said = "Guess a digit."
            for _ in range(5):
                segment = await talk.turn(said)
                guess = read_digit(segment.last_reply)
                if segment.terminated or guess == str(task.data.number):
                    break
                said = "larger" if guess < str(task.data.number) else "smaller"


__all__ = ["GuessingEnv", "Numbers"]
