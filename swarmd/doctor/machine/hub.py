"""Models that are to come from the Hugging Face Hub: a misspelt id is found before the trainer asks for it."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import anyio

from swarmd.config import TrainingConfig
from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import SwarmdError
from swarmd.training.models.known import KINDS, known_models
from swarmd.training.models.source import AUTO, locate_model

HUB_S = 5.0  # longest wait for all answers of the Hub
ENDPOINT = "HF_ENDPOINT"
SIMILAR = 0.85  # of two ids, by difflib
NONE, NO_REVISION, GATED = "none", "no revision", "gated"  # what the Hub has of a model

MODEL_NOWHERE = FindingKind(
    "model.nowhere",
    "error",
    "The Hub has no such model",
    "The trainer cannot load it and ends with code 66. The Hub says the same of a private model whose token it is not "
    "shown.",
    "Correct training.model or training.pool; for a private model log in with `hf auth login`, or set HF_TOKEN",
)
MODEL_GATED = FindingKind(
    "model.gated",
    "warning",
    "The Hub gives the model only to those whom it was granted",
    "The trainer cannot load it and ends with code 66, unless the node has a token that whoever examines it has not.",
    "Ask for it on the model's page, then log in with `hf auth login`, or set HF_TOKEN where the node runs",
)
MODEL_UNASKED = FindingKind(
    "model.unasked",
    "note",
    "The Hub was not asked whether it has the model",
    "It is not on this machine, and the Hub could not be reached in time, or --offline was given. Whether the name is "
    "right shows when the trainer loads it.",
    "Examine it again where the Hub can be reached, or look for the name at huggingface.co",
)


async def check_model(subject: Subject) -> list[Finding]:
    """Ask the Hub for each model of the configuration that this machine has not got."""
    training = subject.whole[0].training
    absent = await in_thread(absent_models, training)
    if not absent:
        return [well("model", "Model", "on this machine, or a directory")]
    if subject.offline:
        told = [(name, advise(name)) for name in absent]
        return [MODEL_UNASKED.found(f"{name} is not on this machine", fix) for name, fix in told if fix]
    outcomes: dict[str, str] = {}
    with anyio.move_on_after(HUB_S):
        async with anyio.create_task_group() as tasks:
            for name in absent:
                tasks.start_soon(_ask, name, training.revision, outcomes)
    late = f"no answer within {HUB_S:g} s"
    return [each for name in absent for each in _judge(name, training.revision, outcomes.get(name, late))]


def absent_models(training: TrainingConfig) -> list[str]:
    """Ids on the Hub that the configuration names and that are in no cache of this machine."""
    named = training.pool if training.model == AUTO else (training.model,)
    ids = [name for name in named if name not in KINDS and _may_be_id(name)]
    if not ids:
        return []
    from huggingface_hub import try_to_load_from_cache

    revision = training.revision or None
    return [name for name in ids if not isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)]


def _may_be_id(name: str) -> bool:
    try:
        return not Path(locate_model(name)).is_dir()
    except SwarmdError:
        return False  # the check of the configuration says so


async def _ask(name: str, revision: str, outcomes: dict[str, str]) -> None:
    outcomes[name] = await in_thread(ask_hub, name, revision)


def ask_hub(name: str, revision: str) -> str:
    """What the Hub says of a model: empty where it gives it, one of the three words, else why that cannot be told."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        HfApi(endpoint=os.environ.get(ENDPOINT) or None).model_info(name, revision=revision or None, timeout=HUB_S)
    except GatedRepoError:
        return GATED
    except RepositoryNotFoundError:
        return NONE
    except RevisionNotFoundError:
        return NO_REVISION
    except Exception as error:  # the client's own, its HTTP library's, the system's: the Hub gave no answer
        return (str(error) or type(error).__name__).splitlines()[0]
    return ""


def _judge(name: str, revision: str, outcome: str) -> list[Finding]:
    if not outcome:
        return [well("model", "Model", f"the Hub has {name}{revision and f', revision {revision}'}")]
    if outcome == GATED:
        return [MODEL_GATED.found(f"the Hub has {name}, and does not give it to who asks here")]
    if outcome == NO_REVISION:
        fix = "Correct training.revision: a branch, a tag or a commit of that model"
        return [MODEL_NOWHERE.found(f"the Hub has {name}, and no revision {revision} of it", fix)]
    if outcome == NONE:
        return [
            MODEL_NOWHERE.found(f"the Hub has no model {name}, or shows it to nobody without a token", advise(name))
        ]
    return [MODEL_UNASKED.found(f"{name} is not on this machine, and the Hub did not answer: {outcome}", advise(name))]


def advise(name: str) -> str:
    """The known id that was probably meant, as an instruction; empty where none is near, or it is one."""
    known = known_models()
    near = () if name in known else difflib.get_close_matches(name, known, n=1, cutoff=SIMILAR)
    return f"Did you mean {near[0]}? Correct training.model or training.pool" if near else ""
