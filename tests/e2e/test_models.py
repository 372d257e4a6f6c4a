"""Any model directory and any reasoning-gym task works in place of the default."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.core.events import StageTrained, TrainerReady
from tests.e2e.audit import events_of
from tests.e2e.conftest import Swarm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TASKS = (
    ("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}),
    ("letter_counting", {"min_words": 1, "max_words": 2}),
    ("base_conversion", {}),
)


def make_model(directory: Path) -> Path:
    """A small random Llama with a byte tokenizer and a chat template of its own, as a Hugging Face directory."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<s>", "</s>", "<pad>", *alphabet])}
    plain = Tokenizer(models.BPE(vocabulary, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token="<s>", eos_token="</s>", pad_token="<pad>", padding_side="left"
    )
    tokenizer.chat_template = (
        "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def test_a_model_directory_and_reasoning_gym_tasks(swarm: Swarm, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    tasks = [{"name": name, "config": config} for name, config in TASKS]
    swarm.run(
        rounds=2,
        training__model=str(model),
        training__prompt_tokens=1024,
        training__held_out_questions=2,
        swarm__kind="reasoning-gym",
        swarm__tasks=tasks,
    )
    swarm.wait_over(150)
    swarm.stop()
    for place in swarm.places:
        events = list(events_of(place.paths.events))
        ready = [event for event in events if isinstance(event, TrainerReady)]
        assert {event.model for event in ready} == {str(model)}
        trained = [event for event in events if isinstance(event, StageTrained)]
        assert [event.round for event in trained] == [0, 1]
        assert all(event.tokens > 0 for event in trained)
