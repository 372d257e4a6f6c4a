"""What one room gives another to call is a protocol that says what it may raise and who implements it."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r"`(swarmd(?:\.\w+)+)`")

# Constructor parameters and fields that are still a bare Callable: what is called within one room, or makes something.
# Whoever adds one that data of another room goes through writes a protocol instead, as those in swarmd/*/ports.py.
WITHIN_ONE_ROOM = {
    "chain/signer/audit.py::AuditLog.carried",
    "chain/signer/signer.py::Signer.make_wallet",
    "chain/submitting/tracking.py::SubmissionReporter.forget",
    "daemon/service.py::Host.begun",
    "daemon/service.py::Host.end",
    "daemon/upgrade.py::Migration.apply",
    "dht/identity/kept_work.py::SearchNews.look",
    "doctor/examination.py::Check.run",
    "doctor/examination.py::Once.make",
    "results/trackers.py::TrackerThread.make",
    "results/trackers.py::Trackers.makers",
    "sim/coroutines.py::Task.on_end",
    "sim/ports/contract.py::View.get",
    "sim/ports/endpoints.py::Line.is_alive",
    "sim/ports/once.py::Once.make",
    "swarms/gym/made.py::Template.work",
    "swarms/proposer/pool.py::Family.draw",
    "swarms/proposer/pool.py::Step.apply",
    "training/checkpoints/progress.py::TrainingState.optimizer",
    "training/distributed/ranks.py::OtherRanks.failed",
    "training/embedded/kinds.py::EmbeddedRecipe.teach",
    "training/sampling/generation.py::Sampler.autocast",
    "training/sampling/generation.py::_Check.pauses",
    "training/sampling/vllm_sampler.py::VllmSampler.steps",
    "training/trainer.py::SwarmTrainer.tell_held",
    "training/trainer.py::SwarmTrainer.tell_ratios",
    "web/http/guard.py::RequestGuard.let_go",
    "uvicorn_server.py::HttpServer.let_go",
    "uvicorn_server.py::HttpServer.ready",
}


@cache
def modules() -> dict[str, ast.Module]:
    """All of swarmd's, by path."""
    paths = sorted((ROOT / "swarmd").rglob("*.py"))
    return {str(path.relative_to(ROOT / "swarmd")): ast.parse(path.read_text("utf-8")) for path in paths}


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def is_bare(annotation: ast.expr | None) -> bool:
    return annotation is not None and "Callable[" in ast.unparse(annotation)


def bare_callables(tree: ast.Module) -> Iterator[str]:
    """Class and name of each field and constructor parameter whose type is a bare Callable."""
    for each in classes(tree):
        for part in each.body:
            if isinstance(part, ast.AnnAssign) and is_bare(part.annotation) and isinstance(part.target, ast.Name):
                yield f"{each.name}.{part.target.id}"
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                given = (*part.args.posonlyargs, *part.args.args, *part.args.kwonlyargs)
                yield from (f"{each.name}.{one.arg}" for one in given if is_bare(one.annotation))


def silent_calls(tree: ast.Module) -> Iterator[str]:
    """Protocols with one call whose docstring does not speak of what it raises."""
    for each in classes(tree):
        if not any("Protocol" in ast.unparse(base) for base in each.bases):
            continue
        for part in each.body:
            is_call = isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name == "__call__"
            if is_call and "aise" not in (ast.get_docstring(part) or ""):
                yield each.name


def exists(dotted: str) -> bool:
    """Whether a module, or a class, function or method of one, has this name."""
    parts = dotted.split(".")[1:]
    for cut in range(len(parts), 0, -1):
        path = "/".join(parts[:cut])
        tree: ast.AST | None = modules().get(f"{path}.py") or modules().get(f"{path}/__init__.py")
        if tree is not None:
            return all((tree := member(tree, name)) is not None for name in parts[cut:])
    return False


def member(tree: ast.AST | None, name: str) -> ast.AST | None:
    """What stands under a name in a module or a class."""
    for node in getattr(tree, "body", ()):
        if getattr(node, "name", None) == name:
            return node  # type: ignore[no-any-return]
        target = getattr(node, "target", None) or next(iter(getattr(node, "targets", ())), None)
        if getattr(target, "id", None) == name:
            return node  # type: ignore[no-any-return]
    return None


def test_what_crosses_from_room_to_room_is_a_protocol() -> None:
    bare = {f"{name}::{each}" for name, tree in modules().items() for each in bare_callables(tree)}
    assert bare == WITHIN_ONE_ROOM


def test_each_protocol_with_one_call_says_what_it_raises() -> None:
    assert [f"{name}::{each}" for name, tree in modules().items() for each in silent_calls(tree)] == []


def test_whoever_a_protocol_names_as_its_implementation_is_there() -> None:
    named = {
        (name, dotted)
        for name, tree in modules().items()
        for each in classes(tree)
        if any("Protocol" in ast.unparse(base) for base in each.bases)
        for dotted in NAMED.findall(ast.get_docstring(each) or "")
    }
    assert len(named) > 10 and {each for each in named if not exists(each[1])} == set()


@pytest.mark.parametrize(
    "source",
    ["class A:\n    def __init__(self, tell: Callable[[int], None]): ...", "class A:\n    tell: Callable[[int], None]"],
)
def test_a_bare_callable_is_found(source: str) -> None:
    assert list(bare_callables(ast.parse(source))) == ["A.tell"]


def test_a_protocol_that_is_silent_and_a_name_that_is_gone_are_found() -> None:
    silent = 'class Sink(Protocol):\n    def __call__(self) -> None:\n        """Take it."""'
    assert list(silent_calls(ast.parse(silent))) == ["Sink"]
    assert exists("swarmd.worker.child.Outbox.observe") and not exists("swarmd.worker.child.Outbox.gone")
