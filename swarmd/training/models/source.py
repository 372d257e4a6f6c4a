"""Finds a model's files without importing torch, so that a missing one is reported at once."""

import difflib
import importlib.util
import re
from pathlib import Path

from swarmd.config import DIGEST, TrainingConfig
from swarmd.errors import ConfigError, GgufRefused, ModelError
from swarmd.files import read_start
from swarmd.installed import extra_command
from swarmd.training.models import files
from swarmd.training.models.hub import SIMILAR, fetch_commit
from swarmd.training.models.known import PACKAGED, model_cache
from swarmd.training.models.remembered import DigestCache

EMBEDDED = "embedded"
AUTO = "auto"  # the largest model of a pool that fits, see swarmd.training.models.pool
# the rules of huggingface_hub.utils.validate_repo_id, which takes a second to import
ID = re.compile(r"(\b[\w.-]{1,96}\b/)?\b[\w.-]{1,96}\b", re.ASCII)
# an id with common additions, such as a web address
_ADDRESS = re.compile(
    r"(?=.*[:@])(?:https?://(?:huggingface\.co|hf\.co)/|hf:(?://)?)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?"
)
MAIN = "main"  # the Hub's default revision
GGUF_MAGIC = b"GGUF"
WITHOUT_CODE = {"trust_remote_code": False}  # else transformers may ask on the terminal whether to run a model's code
MODELS_DIR = Path(__file__).parent.parent.parent / "models"
EMBEDDED_DIR = MODELS_DIR / EMBEDDED


def list_embedded() -> tuple[str, ...]:
    """Names of the models that are shipped."""
    return tuple(sorted(path.parent.name for path in MODELS_DIR.glob(f"{EMBEDDED}*/config.json")))


def is_embedded(name: str) -> bool:
    """Whether a name is that of a shipped model, existing or not."""
    return name == EMBEDDED or (name.startswith(f"{EMBEDDED}-") and "/" not in name)


def is_gguf(source: str) -> bool:
    """Whether a name is that of a GGUF file."""
    return source.lower().endswith(".gguf") and not Path(source).is_dir()


def is_directory(name: str) -> bool:
    """Whether a name is that of an existing model directory of the user's own."""
    try:
        return bool(name) and not is_embedded(name) and Path(name).expanduser().is_dir()
    except (RuntimeError, OSError):  # `locate_model` reports it
        return False


def is_local(name: str) -> bool:
    """Whether a name is that of a model on this machine, existing or not, rather than on the Hub."""
    path = name.startswith((".", "~", "/")) or is_gguf(name) or Path(name).is_dir()
    return path or is_embedded(name) or name in PACKAGED


def locate_model(name: str) -> str:
    """The directory of a model or its GGUF file, else its Hugging Face id. Raises ModelError."""
    if is_embedded(name):
        if name not in list_embedded():
            raise ModelError(
                f"swarmd ships no model {name!r}", f"Set training.model to one of: {', '.join(list_embedded())}"
            )
        return str(MODELS_DIR / name)
    try:
        path = Path(name).expanduser()
        if name and path.is_dir():
            files.check_directory(path)
            files.require_weights(path)
            return str(path)
        if is_gguf(name) and path.exists():
            if read_start(path, len(GGUF_MAGIC)) != GGUF_MAGIC:
                raise GgufRefused(f"{path} is not a GGUF file", "Download it again, or correct training.model")
            require_gguf(name)
            return str(path)
        if name in PACKAGED:
            if not (place := model_cache() / name).is_dir():
                raise ModelError(f"the model {name} is not on this machine", f"Fetch it: `swarmd model get {name}`")
            return str(place)
        absolute = path.is_absolute() or name.startswith((".", "~"))
        if address := _ADDRESS.fullmatch(name.strip()):
            revision = f' and training.revision = "{address[2]}"' if address[2] else ""
            raise ModelError(
                f"{name!r} is not how a model of the Hub is named",
                f'Write its id alone: training.model = "{address[1]}"{revision}',
            )
        meant = absolute or name.count("/") > 1 or (name and path.exists()) or is_gguf(name)
    except RuntimeError as error:  # ~user, for a user unknown here
        raise ModelError(
            f"training.model: the path {name!r} cannot be resolved: {error}", "Write the path out"
        ) from error
    except OSError as error:
        raise ModelError(
            f"the model directory {name!r} cannot be looked into: {error.strerror}",
            "Correct training.model, or let this node's user read it",
        ) from error
    if meant:
        raise _missing_model_error(path, name)
    _check_hub_id(name)
    return name


def _missing_model_error(path: Path, name: str) -> ModelError:
    if path.is_file():
        gguf = read_start(path, len(GGUF_MAGIC)) == GGUF_MAGIC
        fix = f"Rename it to {path.name}.gguf" if gguf else "Name the directory with config.json and the weights"
        if not gguf and (path.parent / "config.json").is_file():
            fix = f'Name its directory: training.model = "{path.parent}"'
        return ModelError(f"{path} is a file, not a model directory" + (", and holds GGUF" if gguf else ""), fix)
    what = "GGUF file" if is_gguf(name) else "model directory"
    seen_from = "" if path.is_absolute() else f"; a relative path counts from here, {Path.cwd()}"
    near = files.similar_directory(name)
    return ModelError(
        f"there is no {what} {path}", f"Did you mean {near}?" if near else f"Correct training.model{seen_from}"
    )


def require_gguf(name: str) -> None:
    """Raise GgufRefused if the package that reads GGUF files is missing."""
    if importlib.util.find_spec("gguf") is None:
        raise GgufRefused(
            f"{name} is read from a GGUF file, which needs the package gguf, and that is not installed",
            f"Install it: {extra_command('gguf')}",
        )


def _check_hub_id(name: str) -> None:
    """Raise ModelError for a name that cannot be an id of the Hub, or that is similar to one of swarmd's own."""
    if not ID.fullmatch(name) or "--" in name or ".." in name or name.endswith(".git"):
        raise ModelError(
            f"{name!r} is neither a directory nor the id of a model on the Hugging Face Hub",
            'Correct training.model: an id is "user/model", of letters, digits, "-", "_" and "."',
        )
    near = difflib.get_close_matches(name.lower(), (*list_embedded(), *PACKAGED, AUTO), n=1, cutoff=SIMILAR)
    if near:
        raise ModelError(f"there is no model {name!r}", f'Did you mean training.model = "{near[0]}"?')


def locate_configured(training: TrainingConfig) -> str:
    """Locate `training.model`, as `locate_model`. Raises ModelError: there is no such model directory or GGUF file;
    ConfigError: `training.revision` does not fit this kind of model."""
    source = locate_model(training.model)
    digest = training.revision.startswith(DIGEST)
    if training.revision and Path(source).exists() != digest:
        is_on_hub = "a model of the Hub, whose revision is a branch, tag or commit"
        is_here = "a directory or file, which has none but the digest of its weights"
        raise ConfigError(
            f"training.revision is {training.revision!r}, but {training.model} is {is_on_hub if digest else is_here}",
            "Leave the revision out, or name one that goes with the model",
        )
    return source


def find_directory(source: str, revision: str = "") -> Path | None:
    """The directory or file of a located model; for the Hub's its directory in the cache, None if it is not cached."""
    if Path(source).exists():
        return Path(source)
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(source, "config.json", revision=revision or None)
    return Path(cached).parent if isinstance(cached, str) else None


def find_configured_model(training: TrainingConfig) -> Path | None:
    """As `find_directory`, for the configured model. Raises as `locate_configured`."""
    return find_directory(locate_configured(training), training.revision)


def hub_revision_of(training: TrainingConfig) -> str:
    """The configured revision on the Hub; empty if there is none, or if it is a digest of weights."""
    return "" if training.revision.startswith(DIGEST) else training.revision


def compare_weights(training: TrainingConfig, directory: str) -> str:
    """How the weights in a directory differ from the digest in `training.revision`, in words; empty if it names no
    digest, or theirs. Raises ModelError, OSError."""
    if not training.revision.startswith(DIGEST):
        return ""
    place, named = Path(directory), training.revision.removeprefix(DIGEST)
    found = DigestCache(place).get_or_compute("files", lambda: files.digest_weights(place))
    if found == named:
        return ""
    return f"the weights of {training.model} have the digest {found[:16]}, training.revision names {named[:16]}"


def prefer_cache(source: str, revision: str = "") -> str:
    """The cached directory of a model of the Hub if it has all weights, else `source`. With it the Hub is not asked,
    which could take minutes while it is unreachable."""
    directory = None if Path(source).exists() else find_directory(source, revision)
    weights = [] if directory is None else files.list_weights(directory)
    return str(directory) if weights and all(path.is_file() for path in weights) else source


def require_model(training: TrainingConfig) -> None:
    """Check that the model is on this machine and reads texts of the configured lengths, else that the Hub has it.
    Raises ModelError: neither is so, or the Hub cannot be asked; GgufRefused: no model can be read from the file;
    ConfigError: as `locate_configured`."""
    if training.model == AUTO:
        return
    snapshot = find_configured_model(training)
    if snapshot is None:
        fetch_commit(training.model, training.revision, list_embedded())
    elif is_gguf(str(snapshot)):
        files.check_gguf(snapshot, is_trained=True)
    else:
        files.check_directory(snapshot)
        files.check_template(snapshot, training.model)
        files.check_context(
            training.model, files.read_context(snapshot), training.prompt_tokens, training.completion_tokens
        )
