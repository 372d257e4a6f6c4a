"""Where a model lies, found out without importing torch, so that a wrong path is told at once."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from swarmd.config import TrainingConfig
from swarmd.errors import ConfigError, ModelError

EMBEDDED = "embedded"
AUTO = "auto"  # the largest of a pool that fits, see swarmd.training.pool
# huggingface_hub.utils.validate_repo_id has these rules, and takes a second to import
ID = re.compile(r"(\b[\w.-]{1,96}\b/)?\b[\w.-]{1,96}\b", re.ASCII)
SIMILAR = 0.8  # of two words, by difflib
MAIN = "main"  # the revision that the Hub gives where none is named
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
    _check_form(name)
    return name


def _check_form(name: str) -> None:
    """Raise ModelError for what is no id of the Hub, or a misspelt word of swarmd's own."""
    if not ID.fullmatch(name) or "--" in name or ".." in name or name.endswith(".git"):
        raise ModelError(
            f"{name!r} is neither a directory nor the id of a model on the Hugging Face Hub",
            'Correct training.model: an id is "user/model", of letters, digits, "-", "_" and "."',
        )
    near = difflib.get_close_matches(name.lower(), (EMBEDDED, AUTO), n=1, cutoff=SIMILAR)
    if near:
        raise ModelError(f"there is no model {name!r}", f'Did you mean training.model = "{near[0]}"?')


def locate_configured(training: TrainingConfig) -> str:
    """Where `training.model` lies, as `locate_model` has it.

    Raises:
        ModelError: there is no such model directory.
        ConfigError: it is a directory, and `training.revision` names a revision.
    """
    source = locate_model(training.model)
    if training.revision and Path(source).is_dir():
        raise ConfigError(
            f"training.revision is {training.revision!r}, but training.model is a directory, which has none",
            "Leave the revision out, or name a model of the Hub",
        )
    return source
