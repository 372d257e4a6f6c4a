"""Sequences that join a batch, leave it, and are drawn as if they were alone."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from swarmd.config import TrainingConfig
from swarmd.training.models.model import Policy
from swarmd.training.sampling import DecodingBatch
from swarmd.training.serving.decoder import (
    Completion,
    Decoder,
    GenerationRequest,
    TextReader,
    _choose_tokens,
    _keep_likeliest,
)
from swarmd.training.serving.loading import choose_directory, load_chosen
from tests.training.serving.conftest import score

PROMPTS = [[5, 60, 70, 80, 90, 100], [7], [9, 30, 40], [200, 201] * 20]


def finish(decoder: Decoder) -> None:
    while decoder.step():
        continue


def test_a_sequence_that_joins_later_is_drawn_as_it_would_be_alone(served: Policy) -> None:
    decoder = Decoder(served, sequences_max=3)
    drawn: list[Completion] = []
    for number, prompt in enumerate(PROMPTS):
        drawn += decoder.submit(
            GenerationRequest(prompt, 25 - 6 * number, temperature=0.8, seed=number, alternatives=2)
        )
        for _ in range(4):
            decoder.step()
    finish(decoder)
    for number, (prompt, completion) in enumerate(zip(PROMPTS, drawn, strict=True)):
        alone = Decoder(served)
        (other,) = alone.submit(GenerationRequest(prompt, 25 - 6 * number, temperature=0.8, seed=number))
        finish(alone)
        assert completion.tokens == other.tokens and completion.text == other.text
        expected = torch.tensor(score(served, prompt, completion.tokens))
        torch.testing.assert_close(torch.tensor(completion.logps), expected, atol=1e-4, rtol=0)
        assert [len(each) for each in completion.likeliest] == [2] * len(completion.tokens)


def test_a_cache_that_cannot_be_joined_takes_new_sequences_when_the_batch_is_done(llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path / "sliding")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MistralConfig(vocab_size=259, num_key_value_heads=2, sliding_window=16, initializer_range=0.2, **sizes)
    MistralForCausalLM(config).save_pretrained(tmp_path / "sliding")
    policy = load_chosen(choose_directory(tmp_path / "sliding", TrainingConfig(device="cpu")))
    decoder = Decoder(policy)
    drawn = [*decoder.submit(GenerationRequest([5] * 30, 6)), *decoder.submit(GenerationRequest([6] * 4, 40))]
    decoder.step()
    drawn += decoder.submit(GenerationRequest([7] * 10, 20))
    decoder.step()
    assert [len(each.tokens) for each in drawn] == [2, 2, 0]
    finish(decoder)
    for each in drawn:
        expected = score(policy, list(each.request.prompt), each.tokens)
        assert each.logps == pytest.approx(expected, abs=1e-4) and len(each.tokens) == each.request.tokens_max


@pytest.mark.parametrize("steps", [0, 2], ids=["at the prompt", "at a token"])
def test_an_interrupted_pass_leaves_nothing_behind(served: Policy, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    decoder = Decoder(served)
    (lost,) = decoder.submit(GenerationRequest([5, 6], 8))
    for _ in range(steps):
        decoder.step()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(DecodingBatch, "_forward", interrupt)
        decoder.step()
    (later,) = decoder.submit(GenerationRequest([7], 3))
    finish(decoder)
    assert lost.failure == "interrupted" and len(later.tokens) == 3 and later.finish == "length"


def test_what_comes_after_the_end_fails_at_once(served: Policy) -> None:
    decoder = Decoder(served)
    (before,) = decoder.submit(GenerationRequest([5], 3))
    decoder.close()
    decoder.run()
    (after,) = decoder.submit(GenerationRequest([5], 3))
    assert before.failure == after.failure == "the server is stopping"


def test_the_cache_shrinks_when_the_longest_sequence_ends(served: Policy) -> None:
    decoder = Decoder(served)
    decoder.submit(GenerationRequest([5] * 200, 3))
    (second,) = decoder.submit(GenerationRequest([6] * 4, 8))
    for _ in range(4):
        decoder.step()
    assert decoder._batch is not None and not second.finish
    assert decoder._batch._mask.size(1) == 8 == decoder._batch._cache.layers[0].keys.size(2)


def test_what_does_not_fit_waits(served: Policy) -> None:
    decoder = Decoder(served, sequences_max=2)
    first = decoder.submit(GenerationRequest([5], 3, group=2))
    later = decoder.submit(GenerationRequest([6], 2))
    decoder.step()
    assert len(first[0].tokens) == 1 and not later[0].tokens
    finish(decoder)
    assert len(later[0].tokens) <= 2 and later[0].finish
    decoder._cache_tokens = 60
    long = decoder.submit(GenerationRequest([7] * 50, 50))  # more than there is, and nothing else goes on
    short = decoder.submit(GenerationRequest([8], 2))
    decoder.step()
    assert len(long[0].tokens) == 1 and not short[0].tokens
    long[0].cancelled = True
    finish(decoder)
    assert short[0].finish and not long[0].finish


def test_each_row_has_its_own_temperature_and_share() -> None:
    weights = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]])
    kept = _keep_likeliest(weights, torch.tensor([0.6, 0.4]))
    assert kept.tolist() == [[0.5, weights[0, 1].item(), 0, 0], [0, 0, 0, weights[1, 3].item()]]
    requests = [
        GenerationRequest([1], 1, temperature=0.0),
        GenerationRequest([1], 1, temperature=1.0, top_p=0.6),
        GenerationRequest([1], 1, temperature=1.0),
    ]
    going = [Completion(each, lambda: None, torch.Generator().manual_seed(0), None) for each in requests]
    logits = weights[:1].log().repeat(3, 1)
    draws = torch.stack([_choose_tokens(logits, going) for _ in range(3000)])
    shares = torch.stack([(draws == token).float().mean(0) for token in range(4)], 1)
    expected = torch.tensor([[1, 0, 0, 0], [0.625, 0.375, 0, 0], [0.5, 0.3, 0.15, 0.05]])
    torch.testing.assert_close(shares, expected, atol=0.04, rtol=0)


def test_half_a_character_is_not_shown(served: Policy) -> None:
    text = "naïve 🙂 text"
    reader = TextReader(served.decode_completion)
    seen = []
    for token in served.tokenizer.encode(text, add_special_tokens=False):
        reader.add(token)
        seen.append(reader.text)
    assert all(text.startswith(each) for each in seen) and seen[-1] == text
    reader.add(served.tokenizer.encode("é", add_special_tokens=False)[0])
    assert reader.text == text
    reader.finish()
    assert reader.text == text + "\ufffd"
