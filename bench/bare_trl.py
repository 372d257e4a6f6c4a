"""The peer of the stage benchmark: TRL's GRPOTrainer used as its documentation shows, one stage a line on stdin.

It loads the same model, draws the same questions, scores completions with the same function and takes as many steps on
batches of the same shape; everything else is TRL's own. Each line names a round; the answer is a line of JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from bench import half_flat
from swarmd.config import Config, decode
from swarmd.swarms.plan import NO_MATERIAL, Question, StageId
from swarmd.swarms.registry import make_plan
from swarmd.training.library_logging import silence_libraries
from swarmd.training.models.source import locate_model


class Bare:
    """Model, tokenizer and questions."""

    def __init__(self, config: Config, peer: str) -> None:
        self.config = config
        self.peer = peer
        self.plan = make_plan(config.swarm, config.training)
        source = locate_model(config.training.model)
        self.tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(source, dtype="float32")  # as swarmd trains

    def train(self, round: int) -> dict[str, float]:
        """One stage. Returns seconds of wall and processor time, tokens and reward."""
        training = self.config.training
        questions = list(
            islice(self.plan.draw(StageId(self.peer, round, 0), NO_MATERIAL), training.steps * training.questions)
        )
        rewards: list[float] = []

        def reward(completions: list[Any], number: list[int], **_: Any) -> list[float]:
            texts = [completion[0]["content"] for completion in completions]
            scored = [self.score(questions[index], text) for index, text in zip(number, texts, strict=True)]
            rewards.extend(scored)
            return scored

        trainer = self.make_trainer(reward, questions)
        wall, cpu = time.perf_counter(), time.process_time()
        trainer.train()
        return {
            "wall_s": time.perf_counter() - wall,
            "cpu_s": time.process_time() - cpu,
            "reward": sum(rewards) / len(rewards),
            "completions": len(rewards),
        }

    def score(self, question: Question, text: str) -> float:
        return self.plan.score(question, [text])[0].reward

    def make_trainer(self, reward: Any, questions: list[Question]) -> GRPOTrainer:
        """TRL's trainer with the settings of the configuration, as swarmd.training.trainer makes its own."""
        training = self.config.training
        rows = [
            {"prompt": [{"role": m.role, "content": m.content} for m in question.messages], "number": number}
            for number, question in enumerate(questions)
        ]
        arguments = GRPOConfig(
            output_dir=tempfile.gettempdir(),
            per_device_train_batch_size=training.questions * training.generations,
            num_generations=training.generations,
            max_completion_length=training.completion_tokens,
            temperature=training.temperature,
            learning_rate=training.learning_rate,
            lr_scheduler_type="constant",
            beta=training.beta,
            epsilon=training.clip_low,
            epsilon_high=training.clip_high,
            loss_type="dapo",
            max_steps=training.steps,
            use_cpu=training.device == "cpu",
            bf16=training.device != "cpu",
            gradient_checkpointing=False,
            shuffle_dataset=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=training.seed,
        )
        return GRPOTrainer(
            model=self.model,
            processing_class=self.tokenizer,
            args=arguments,
            reward_funcs=reward,
            train_dataset=Dataset.from_list(rows),
        )


def main(config: Path, peer: str) -> None:
    """Say that the model is loaded, then train until stdin ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    silence_libraries()
    half_flat.make_known()
    bare = Bare(decode(config.read_bytes()), peer)
    print(json.dumps({"parameters": bare.model.num_parameters()}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(bare.train(int(line))), file=answers, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
