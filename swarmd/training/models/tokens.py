"""What names a tokenizer: two of the same digest make the same tokens of the same text."""

from __future__ import annotations

import hashlib
import json
from typing import Any

DECIDING = ("model", "added_tokens", "normalizer", "pre_tokenizer")  # parts of a fast tokenizer that make the tokens


def digest_tokenizer(tokenizer: Any) -> str:
    """SHA-256 in hex of what decides which tokens a text becomes and which token ends it.

    Of a tokenizer written in Python its class and vocabulary have to do.
    """
    if tokenizer.is_fast:
        whole = json.loads(tokenizer.backend_tokenizer.to_str())
        parts: Any = {name: whole.get(name) for name in DECIDING}
    else:
        parts = [type(tokenizer).__name__, tokenizer.get_vocab()]
    text = json.dumps([parts, tokenizer.eos_token_id], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
