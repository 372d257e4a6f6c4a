"""Asks the Hugging Face Hub for a model, and explains its answers, or those of a proxy in its place."""

import difflib
import json

from swarmd.errors import HubUnreachable, ModelError
from swarmd.training.models.files import ADAPTERS, similar_directory
from swarmd.training.models.known import known_models

HUB_S = 10.0  # longest wait for an answer
SIMILAR = 0.8  # difflib's cutoff for similar names
_ACCESS = "`hf auth login`, or set HF_TOKEN where the node runs"


def fetch_commit(name: str, revision: str, shipped: tuple[str, ...]) -> str:
    """Ask for the commit of a model's revision. Errors name the `shipped` models as alternatives. Raises ModelError:
    the Hub lacks the model or revision, refuses it to this user, or has it only in part; HubUnreachable: the Hub does
    not answer, or something else does."""
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(name, revision=revision or None, timeout=HUB_S)
    except Exception as error:  # its back-ends may raise anything without a network
        raise explain_hub(error, name, revision, shipped) from error
    files = {each.rfilename for each in info.siblings or ()}
    if ADAPTERS in files and "config.json" not in files:
        raise ModelError(
            f"{name} holds adapters on the Hub, not a model: it has {ADAPTERS}",
            "Name the model that they were made for; its page on the Hub says which",
        )
    if files and "config.json" not in files:
        gguf = any(each.lower().endswith(".gguf") for each in files)
        raise ModelError(
            f"{name} on the Hub has no config.json" + (", only GGUF files" if gguf else ""),
            "Download one of its files with `hf download`, and name that file in training.model"
            if gguf
            else "Name a model that transformers can load",
        )
    return str(info.sha or "")


def explain_hub(error: BaseException, name: str, revision: str = "", shipped: tuple[str, ...] = ()) -> ModelError:
    """Turn an exception of huggingface_hub into an error about a model."""
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    own = f", or set training.model to one of swarmd's own: {', '.join(shipped)}" if shipped else ""
    status = status_of(error)
    if isinstance(error, hub.GatedRepoError):
        return ModelError(
            f"the Hub gives {name} only to accounts that it was granted to ({status})",
            f"Ask for it at {constants.ENDPOINT}/{name}, then {_ACCESS}",
        )
    if isinstance(error, hub.RevisionNotFoundError):
        such = f"revision {revision!r}" if revision else "such revision"
        return ModelError(f"{name} on the Hub has no {such}", "Correct training.revision")
    if isinstance(error, hub.RepositoryNotFoundError | hub.HFValidationError):
        near = difflib.get_close_matches(name, known_models(), n=1, cutoff=SIMILAR)
        meant = f"Did you mean {near[0]}? " if near and near[0] != name else ""
        return ModelError(
            f"the model {name} is not on this machine, and the Hub shows none with this name",
            f"{meant}Correct training.model{own}; if it is private, {_ACCESS}",
        )
    if status == 401:
        return ModelError(f"the Hub does not take the token for {name} (401)", f"Make a new token, then {_ACCESS}")
    if status == 403:
        return ModelError(
            f"the Hub forbids {name} to this token (403)", f"Give the token the right to read it, or another: {_ACCESS}"
        )
    if status == 429:
        return HubUnreachable(
            f"the Hub takes no more requests from here for a while (429), so {name} cannot be downloaded now",
            f"Wait some minutes; with an account it takes more: {_ACCESS}",
        )
    if status and status >= 500:
        return HubUnreachable(
            f"the Hub is in trouble itself ({status}), so {name} cannot be downloaded now", "Try again"
        )
    offline = constants.HF_HUB_OFFLINE and isinstance(error, hub.LocalEntryNotFoundError)
    if offline or isinstance(error, hub.OfflineModeIsEnabled):
        return HubUnreachable(
            f"{name}, or this revision of it, is not on this machine, and HF_HUB_OFFLINE forbids to ask the Hub",
            f"Take HF_HUB_OFFLINE out of the environment{own}",
        )
    if isinstance(error, json.JSONDecodeError | hub.FileMetadataError):
        return HubUnreachable(
            f"what answers at {constants.ENDPOINT} is not the Hub, so {name} cannot be fetched: a page to log in to "
            "the network, or a proxy",
            f"Open a page of the Hub in a browser on this network, or see what HF_ENDPOINT and the proxies name{own}",
        )
    if isinstance(error, OSError) and error.filename is not None:  # an error of the file system, not the network
        return HubUnreachable(
            f"{name} cannot be kept on this machine: {error.filename}: {error.strerror}",
            "Let HF_HOME, or HF_HUB_CACHE, name a directory that this node's user may write",
        )
    reason = f"it answers {status}" if status else type(error).__name__
    beside = similar_directory(name)
    meant = f"Did you mean the directory {beside}? " if beside else ""
    if "/" not in name:
        meant += f'Write its whole id, "user/{name}", or the path of a directory, "./{name}". '
    return HubUnreachable(
        f"the model {name} is not on this machine, and the Hub cannot be asked: {reason}",
        f"{meant}Download it while there is a network{own}",
    )


def status_of(error: BaseException) -> int:
    """The HTTP status in an exception; 0 if there is none."""
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def find_hub_error(error: BaseException) -> BaseException | None:
    """The exception of the Hub or the network in another one's chain of causes; None if there is none. transformers
    gives the same message for a missing model and a missing network."""
    from huggingface_hub import errors as hub

    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    told = (hub.HfHubHTTPError, hub.HFValidationError, hub.FileMetadataError)
    chain = [each for each in chain if not isinstance(each, hub.RemoteEntryNotFoundError)]
    found: list[BaseException] = [each for each in chain if isinstance(each, told)]
    if not found:  # else an exception of the HTTP library
        found = [
            each
            for each in chain
            if isinstance(each, hub.LocalEntryNotFoundError) or type(each).__module__.startswith("httpx")
        ]
    return found[-1] if found else None  # the innermost
