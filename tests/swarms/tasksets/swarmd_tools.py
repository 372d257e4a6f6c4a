"""A taskset with a tool and a state: look a word up, then say it. One word makes the tool hang."""

import threading

import verifiers.v1 as vf

WORDS = {"one": "uno", "two": "dos", "three": "tres", "stuck": ""}


class Seen(vf.State):
    words: tuple[str, ...] = ()


class Dictionary(vf.Toolset[vf.ToolsetConfig, Seen]):
    TOOL_PREFIX = None

    @vf.tool
    def look_up(self, word: str) -> str:
        """Say a word in Spanish."""
        if word == "stuck":
            threading.Event().wait()
        self.state.words = (*self.state.words, word)
        return WORDS[word]


class Word(vf.TaskData):
    word: str


class WordTask(vf.Task[Word, Seen]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Dictionary(vf.ToolsetConfig())]

    @vf.reward
    async def said(self, task: Word, trace: vf.Trace) -> float:
        return float(trace.last_reply == WORDS[task.word])

    @vf.reward(weight=0.5)
    async def looked_up(self, task: Word, trace: vf.Trace) -> float:
        return float(task.word in trace.state.words)


class Words(vf.Taskset[WordTask]):
    def load(self) -> list[WordTask]:
        return [WordTask(Word(system_prompt="Translate.", prompt=word, word=word)) for word in WORDS]


__all__ = ["Words"]
