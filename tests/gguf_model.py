"""A small random Llama as a GGUF file, written by the package gguf."""

from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, MLP, HEADS, KEYS, LAYERS = 32, 64, 4, 2, 2
CHAT = (
    "{% for message in messages %}[INST]{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[INST]answer: {% endif %}"
)


def write_gguf(
    path: Path, architecture: str = "llama", parts: int = 0, extra: str = "", chat: str = CHAT
) -> dict[str, np.ndarray]:
    """Write the file; some of its weights are in 8-bit blocks.

    Args:
        parts: into how many files the model claims to be split.
        extra: the name of one tensor more than the architecture has.

    Returns:
        The values of its tensors by their names in the file, as the file has them.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType
    from gguf.quants import dequantize, quantize
    from tokenizers import pre_tokenizers

    tokens = ["<s>", "</s>", "[INST]", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    writer: Any = GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(2048)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEYS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    if chat:
        writer.add_chat_template(chat)
    if parts:
        writer.add_uint16("split.count", parts)
    narrow = HIDDEN * KEYS // HEADS
    shapes = {"token_embd.weight": (len(tokens), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        of_layer = {
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (narrow, HIDDEN),
            "attn_v": (narrow, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (MLP, HIDDEN),
            "ffn_up": (MLP, HIDDEN),
            "ffn_down": (HIDDEN, MLP),
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    if extra:
        shapes[extra] = (16,)
    random, values = np.random.default_rng(0), {}
    blocks = GGMLQuantizationType.Q8_0
    for name, shape in shapes.items():
        weights = (0.2 * random.standard_normal(shape) + (len(shape) == 1)).astype(np.float32)
        if len(shape) == 2:
            packed = quantize(weights, blocks)
            writer.add_tensor(name, packed, raw_dtype=blocks)
            weights = dequantize(packed, blocks)
        else:
            writer.add_tensor(name, weights)
        values[name] = weights
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values
