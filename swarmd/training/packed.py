"""Log-probabilities of a batch's completions in one packed pass: no padding, and each prompt once for its group.

* All sequences of the pass are in one row: first the distinct prompts, then the completions, each without its last
token, which predicts nothing. * Linear layers, the larger part of a pass, see that row as it is. Only attention works
by sequence: a prompt attends to itself, a completion to its prompt and itself. `attend_packed` does so as the attention
function of any model's layers; without a `PackedTree` it is transformers' own SDPA. * Logits are computed for tokens of
completions only, in tiles, one at a time (TRL's `ChunkedLogProbFunction`).

If a model does not compute through its attention function alone, as state-space layers do not, packed and plain passes
disagree: `swarmd.training.trainer` compares the two once, and uses packing only if it is right and not slower.
"""

from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from trl.kernels import ChunkedLogProbFunction

ATTENTION = "swarmd_packed"  # name under which models find `attend`
VOCABULARY_TILE = 8192  # logits of a token computed at a time


class PackedTree(NamedTuple):
    """Where the sequences of a packed row are: N tokens, of Q prompts and B completions.

    P and C are the lengths of the longest prompt, and of the longest completion without its last token.
    """

    prompts: torch.Tensor  # (Q, P) indices in the row; any index after a prompt's end
    completions: torch.Tensor  # (B, C) the same for completions
    prompt_of: torch.Tensor  # (B,)
    mask: torch.Tensor  # (B, 1, C, P + C) which tokens of prompt and completion a completion's token attends to
    distance: torch.Tensor  # (B, 1, C, P + C) how many tokens back those are
    back: torch.Tensor  # (N,) index of each token of the row among all of `prompts`, then all of `completions`


class PackedRow(NamedTuple):
    """One row of tokens, M of which are predicted."""

    tokens: torch.Tensor  # (1, N)
    positions: torch.Tensor  # (1, N)
    tree: PackedTree
    sources: torch.Tensor  # (M,) indices in the row of the tokens before the targets
    targets: torch.Tensor  # (M,) token ids


def prepare_packing(model: Any) -> None:
    """Give a model with SDPA the attention function of packed rows; plain rows are computed as before."""
    whole = unwrap_adapters(model)
    if whole.config._attn_implementation == "sdpa":
        whole.set_attn_implementation(ATTENTION)


def can_pack(model: Any) -> bool:
    """Whether a model has the attention function of packed rows."""
    return bool(unwrap_adapters(model).config._attn_implementation == ATTENTION)


def unwrap_adapters(model: Any) -> Any:
    """The model under adapters, or the model itself without them."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def number_prompts(input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int) -> torch.Tensor:
    """Numbers (B,), equal for rows with equal prompts; arguments as in `pack_batch`."""
    prompts = torch.cat([input_ids[:, :-keep], attention_mask[:, :-keep]], 1)
    numbers: torch.Tensor = torch.unique(prompts, dim=0, return_inverse=True)[1]
    return numbers


def pack_batch(input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int) -> PackedRow:
    """Pack a batch into one row.

    Args:
        input_ids: (B, width + keep), prompts padded on the left, completions on the right.
        attention_mask: the same shape, 0 for padding.
        keep: number of last columns that hold completions.
    """
    device, width = input_ids.device, input_ids.size(1) - keep
    distinct, prompt_of = torch.unique(
        torch.cat([input_ids[:, :width], attention_mask[:, :width]], 1), dim=0, return_inverse=True
    )
    ids, present = distinct[:, :width], distinct[:, width:].bool()
    lengths = present.sum(1)
    completion, written = input_ids[:, width:], attention_mask[:, width:].bool()
    written_lengths = written.sum(1)
    fed_lengths = (written_lengths - 1).clamp(min=0)
    longest, longest_fed = int(lengths.max()), int(fed_lengths.max())
    fed = torch.arange(longest_fed, device=device) < fed_lengths[:, None]

    # Places in the row: prompts one after another, then completions.
    starts = lengths.cumsum(0) - lengths
    fed_starts = lengths.sum() + fed_lengths.cumsum(0) - fed_lengths
    steps, fed_steps = torch.arange(longest, device=device), torch.arange(longest_fed, device=device)
    inside = steps < lengths[:, None]
    prompts = (starts[:, None] + steps).where(inside, 0)
    completions = (fed_starts[:, None] + fed_steps).where(fed, 0)

    # A completion's token sees its whole prompt, and its completion up to itself.
    ahead = (lengths[prompt_of][:, None] + fed_steps)[:, None, :, None]
    key_positions = torch.cat([steps.expand(len(completion), -1), lengths[prompt_of][:, None] + fed_steps], 1)
    distance = ahead - key_positions[:, None, None, :]
    causal = fed_steps[:, None] >= fed_steps
    seen_prompt = inside[prompt_of][:, None, None, :].expand(-1, 1, longest_fed, -1)
    mask = torch.cat([seen_prompt, causal.expand(len(completion), 1, -1, -1)], 3)

    count = inside.numel()
    cells = torch.arange(count, device=device).view_as(inside)[inside]
    fed_cells = count + torch.arange(fed.numel(), device=device).view_as(fed)[fed]

    # The first token of a completion is predicted by its prompt's last token, each other by the one before.
    last = (starts + lengths - 1)[prompt_of]
    before = torch.cat([last[:, None], completions], 1)
    reached = torch.arange(before.size(1), device=device) < written_lengths[:, None]
    return PackedRow(
        torch.cat([ids[present], completion[:, :longest_fed][fed]])[None],
        torch.cat([steps.expand_as(inside)[inside], (lengths[prompt_of][:, None] + fed_steps)[fed]])[None],
        PackedTree(prompts, completions, prompt_of, mask, distance, torch.cat([cells, fed_cells])),
        before[reached],
        completion[:, : before.size(1)][reached],
    )


def attend_packed(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree: PackedTree | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, by sequence if the row is packed; returns (1, N, heads, head width). `query`: (1, heads,
    N, width); `key` and `value` have fewer heads if heads share them. `tree`: of the row; None for transformers'
    SDPA."""
    if tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    prompts = tree.prompts
    query, key, value = query[0], key[0], value[0]

    def gather_sequences(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """(heads, N, width) to (sequences, heads, tokens, width)."""
        return states[:, places].transpose(0, 1)

    prompt_key, prompt_value = gather_sequences(key, prompts), gather_sequences(value, prompts)
    windowed = None
    if sliding_window is not None and prompts.size(1) > sliding_window:
        steps = torch.arange(prompts.size(1), device=query.device)
        between = steps[:, None] - steps
        windowed = ((between >= 0) & (between < sliding_window))[None, None]
    first, _ = sdpa_attention_forward(
        module, gather_sequences(query, prompts), prompt_key, prompt_value, windowed, **kwargs
    )
    parts = [first.flatten(0, 1)]
    if tree.completions.size(1):
        mask = tree.mask if sliding_window is None else tree.mask & (tree.distance < sliding_window)
        keys = torch.cat([prompt_key[tree.prompt_of], gather_sequences(key, tree.completions)], 2)
        values = torch.cat([prompt_value[tree.prompt_of], gather_sequences(value, tree.completions)], 2)
        rest, _ = sdpa_attention_forward(
            module, gather_sequences(query, tree.completions), keys, values, mask, **kwargs
        )
        parts.append(rest.flatten(0, 1))
    return torch.cat(parts)[tree.back][None], None


AttentionInterface.register(ATTENTION, attend_packed)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def compute_packed_logps(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log-probabilities and entropies (B, keep) of the last `keep` tokens, 0 for padding. Gradients flow
    through the prompts, too; entropies have none. `model`: has the attention function `ATTENTION`, with or without
    adapters."""
    packed = pack_batch(input_ids, attention_mask, keep)
    whole = unwrap_adapters(model)
    hidden = whole.base_model(
        input_ids=packed.tokens,
        position_ids=packed.positions,
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=input_ids.device),  # four axes: left as it is
        use_cache=False,
        tree=packed.tree,
    ).last_hidden_state[0]
    head = whole.get_output_embeddings()
    logs, entropies, *_ = ChunkedLogProbFunction.apply(  # type: ignore[no-untyped-call]
        hidden[packed.sources],
        head.weight,
        head.bias,
        packed.targets,
        temperature,
        VOCABULARY_TILE,
        None,
        1.0,
        ("entropy",),
    )
    written = attention_mask[:, -keep:].bool()
    zeros = logs.new_zeros(written.shape)
    return zeros.masked_scatter(written, logs), zeros.masked_scatter(written, entropies.detach())
