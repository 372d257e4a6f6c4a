"""Where a model lies, found out without importing torch, so that a wrong path is told at once."""

from __future__ import annotations

from pathlib import Path

from swarmd.errors import ModelError

EMBEDDED = "embedded"
AUTO = "auto"  # the largest of a pool that fits, see swarmd.training.pool
EMBEDDED_DIR = Path(__file__).parent.parent / "models" / "embedded"


def locate_model(name: str) -> str:
    """The directory of a model, or its Hugging Face id where no directory is meant. Raises ModelError."""
    if name == EMBEDDED:
        return str(EMBEDDED_DIR)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"the model directory {path} has no config.json", "Point training.model at a saved model")
        return str(path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or path.exists():
        raise ModelError(f"there is no model directory {path}", "Correct training.model")
    return name
