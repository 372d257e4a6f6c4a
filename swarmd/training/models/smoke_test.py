"""Trying a loaded model out on a few tokens, before hours are spent on numbers that do not work on this device.

RL Swarm's nodes with 16-bit weights on CPUs died of a RuntimeError in their first step, or trained on NaN.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

TOKENS = 4  # of the prompt
_DRAWN = 2  # so that the key-value cache is used once


def try_out(model: Any, autocast: Callable[[], contextlib.AbstractContextManager[Any]]) -> str:
    """Generate, and compute a loss and its gradients, on a few tokens; why that fails, or nothing.

    Weights and random generators stay as they were. Raises what running out of memory raises.
    """
    try:
        return _find_damage(model) or _generate(model, autocast) or _differentiate(model, autocast)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {first_line(error)}"
    finally:
        model.zero_grad(set_to_none=True)


def _find_damage(model: Any) -> str:
    """Weights that are not finite: of an embedding, no few tokens would show them."""
    for name, weight in model.state_dict().items():
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            return f"{name} holds values that are not finite"
    return ""


def _generate(model: Any, autocast: Callable[[], contextlib.AbstractContextManager[Any]]) -> str:
    model.eval()
    ids = _some_tokens(model)
    with torch.no_grad(), autocast():
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=_DRAWN,
            min_new_tokens=_DRAWN,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    finite = all(bool(torch.isfinite(logits).all()) for logits in output.logits)
    return "" if finite else "its logits are not finite"


def _differentiate(model: Any, autocast: Callable[[], contextlib.AbstractContextManager[Any]]) -> str:
    model.train()
    ids = _some_tokens(model)
    with autocast():
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    norms = [parameter.grad.float().norm() for parameter in model.parameters() if parameter.grad is not None]
    return "" if bool(torch.isfinite(torch.stack([loss.detach().float(), *norms])).all()) else "NaN in its gradients"


def _some_tokens(model: Any) -> torch.Tensor:
    vocabulary = model.get_input_embeddings().num_embeddings
    return torch.tensor([[token % vocabulary for token in range(11, 11 + TOKENS)]], device=model.device)


def first_line(error: BaseException) -> str:
    """Of its message, without a full stop at the end; its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
