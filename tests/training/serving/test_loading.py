"""What is served of a node: its newest checkpoint, as the trainer has it and as plain transformers loads it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from swarmd.config import LoraConfig, TrainingConfig
from swarmd.errors import ModelError
from swarmd.training.engine import TrainingEngine
from swarmd.training.serving.decoder import Decoder, GenerationRequest
from swarmd.training.serving.loading import choose_checkpoint, choose_directory, load_chosen
from tests.training.conftest import train_stage
from tests.training.serving.conftest import score

PROMPT = [5, 60, 70, 80]


@pytest.mark.parametrize("rank", [0, 2], ids=["whole", "adapters"])
def test_a_checkpoint_gives_the_log_probabilities_of_the_trainer(
    make_engine: Callable[..., TrainingEngine], llama: Path, tmp_path: Path, rank: int
) -> None:
    engine = make_engine(model=str(llama), learning_rate=0.05, steps=1, lora=LoraConfig(rank=rank))
    with torch.no_grad():  # random answers may all be wrong, and then nothing is learnt
        for weight in engine.policy.trained_weights().values():
            weight += 0.1
    train_stage(engine)
    engine.close()
    training = TrainingConfig(device="cpu", model="elsewhere")
    chosen = choose_checkpoint(tmp_path / "a" / "checkpoints", training)
    policy = load_chosen(chosen)
    decoder = Decoder(policy)
    (drawn,) = decoder.submit(GenerationRequest(PROMPT, 12, seed=1))
    while decoder.step():
        continue
    engine.policy.model.eval()
    assert drawn.logps == pytest.approx(score(engine.policy, PROMPT, drawn.tokens), abs=1e-4)
    base = load_chosen(choose_directory(llama, training))
    assert drawn.logps != pytest.approx(score(base, PROMPT, drawn.tokens), abs=1e-2)
    # The documented line: adapters need the name under which PEFT looks for them.
    checkpoint = Path(shutil.copytree(tmp_path / "a" / "checkpoints" / "r000000000-s0000", tmp_path / "mine"))
    if rank:
        (checkpoint / "model.safetensors").rename(checkpoint / "adapter_model.safetensors")
    plain = AutoModelForCausalLM.from_pretrained(checkpoint)
    with torch.no_grad():
        logs = torch.log_softmax(plain(torch.tensor([PROMPT])).logits[0, -1], -1)
    assert float(logs[drawn.tokens[0]]) == pytest.approx(drawn.logps[0], abs=1e-4)


def test_a_node_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no checkpoint in"):
        choose_checkpoint(tmp_path, TrainingConfig())


def test_damaged_adapters_are_refused(make_engine: Callable[..., TrainingEngine], llama: Path, tmp_path: Path) -> None:
    engine = make_engine(model=str(llama), steps=1, lora=LoraConfig(rank=1))
    train_stage(engine)
    engine.close()
    (checkpoint,) = (tmp_path / "a" / "checkpoints").glob("*/")
    (checkpoint / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"model\.safetensors is missing or does not match"):
        choose_directory(checkpoint, TrainingConfig())
    with pytest.raises(ModelError, match=r"no checkpoint in .* is complete"):
        choose_checkpoint(tmp_path / "a" / "checkpoints", TrainingConfig())


def test_adapters_of_another_base_are_refused(
    make_engine: Callable[..., TrainingEngine], llama: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(llama, tmp_path / "base"))
    engine = make_engine(model=str(base), steps=1, lora=LoraConfig(rank=1))
    train_stage(engine)
    engine.close()
    config = LlamaConfig.from_pretrained(base)
    config.intermediate_size = 32
    LlamaForCausalLM(config).save_pretrained(base)
    with pytest.raises(ModelError, match="do not fit"):
        load_chosen(choose_checkpoint(tmp_path / "a" / "checkpoints", TrainingConfig(device="cpu")))


def test_a_model_without_a_template_goes_on_with_the_text(llama: Path, tmp_path: Path) -> None:
    from swarmd.swarms.plan import Message
    from swarmd.training.serving.loading import encode_chat

    base = Path(shutil.copytree(llama, tmp_path / "base"))
    (base / "chat_template.jinja").unlink()
    policy = load_chosen(choose_directory(base, TrainingConfig(device="cpu")))
    assert policy.decode_completion(encode_chat(policy, [Message("system", "Once"), Message("user", "upon")])) == (
        "Once\nupon"
    )
