"""A scripted model in the engine's turns: it pauses, its program runs, it goes on, and no output is trained on."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoTokenizer

from swarmd.config import SwarmConfig, TaskConfig
from swarmd.swarms.code import CodePlan
from swarmd.swarms.plan import NO_MATERIAL, StageId
from swarmd.training.cancellation import Cancellation
from swarmd.training.models.source import EMBEDDED_DIR
from swarmd.training.sampling import Turns, encode_turns

PROGRAM = "<program>\n```python\nprint(6 * 7)\n```\n</program>"
SCRIPT = (f"I count. {PROGRAM}", f"And again. {PROGRAM}", "So it is <answer>42</answer>")


class Script:
    """Stands in for policy and sampler: a real tokenizer, and completions as written."""

    def __init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_DIR)
        self.stop_ids = [self.tokenizer.eos_token_id]
        self._turn = 0

    def encode_completion(self, text: str, cut: bool, tokens_max: int) -> list[int]:
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)[:tokens_max]
        return ids if cut or len(ids) == tokens_max else [*ids, self.tokenizer.eos_token_id]

    def decode_completion(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def sample(self, prompts: Sequence[Sequence[int]], group: int, *_: Any) -> list[list[int]]:
        text, self._turn = SCRIPT[self._turn], self._turn + 1
        return [self.encode_completion(text, self._turn < len(SCRIPT), 10_000) for _ in range(len(prompts) * group)]


def test_programs_run_while_the_model_writes_and_their_output_is_not_trained_on() -> None:
    tasks = (TaskConfig("digits_reverse"),)
    plan = CodePlan(SwarmConfig(id="test", kind="code", tasks=tasks, options={"prompt": "none"}))
    question = next(plan.draw(StageId("a", 0, 0), NO_MATERIAL))
    script: Any = Script()
    turns = Turns(plan, script, script, 2000, 1.0)
    drawn = turns.complete([question], [[1, 2]], 2, torch.Generator(), Cancellation())
    output = "\n<output>\n42\n</output>\n"
    assert [each.text for each in drawn] == [SCRIPT[0] + output + SCRIPT[1] + output + SCRIPT[2]] * 2
    for each in drawn:
        foreign = [token for token, own in zip(each.tokens, each.own, strict=True) if not own]
        assert script.decode_completion(foreign) == output * 2
        assert encode_turns(plan, script, each.text, False, 2000) == (each.tokens, each.own)
    assert [score.parts["programs"] for score in plan.score(question, [each.text for each in drawn])] == [0.1, 0.1]
