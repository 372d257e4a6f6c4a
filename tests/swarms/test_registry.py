"""Kinds of swarm: swarmd's own, plug-ins that stand on the path as pip leaves them, and what is refused."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import ExitCode, SwarmError
from swarmd.swarms.registry import BUILT_IN, SwarmKind, check_kind, find_kind, list_kinds, make_plan

PLAN = '''
from swarmd.plugin import Plan

class Echo(Plan):
    """Repeat after me.

    And more words.
    """

    stages = 2
    tasks = ("echo",)

    def __init__(self, swarm, training, home):
        self.given = (swarm.id, training.steps, home)
        {init}

    def draw(self, place, material): ...
    def hold_out(self, task, count): ...
    def regenerate(self, reference, place, material): ...
    def score(self, question, completions): ...
'''


def install(site: Path, name: str, points: str, code: str, init: str = "pass") -> None:
    """Put a distribution there as pip does: its module, and its metadata beside it."""
    metadata = site / f"{name}-1.2.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(f"[swarmd.swarms]\n{points}\n", encoding="utf-8")
    (site / f"{name}.py").write_text(code.replace("{init}", init), encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_kinds_of_swarmd_are_known_without_importing_them() -> None:
    assert {name: find_kind(name).stages for name in BUILT_IN} == {
        "digits": 1,
        "reasoning-gym": 1,
        "gsm8k": 3,
        "math-hard": 3,
        "code": 1,
        "proposer-solver": 2,
        "file": 1,
        "verifiers": 1,
    }
    code = (
        "import sys; from swarmd.swarms.registry import list_kinds\n"
        "assert len(list_kinds()) >= 8\n"
        "heavy = {'torch', 'reasoning_gym', 'datasets', 'numpy', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize("kind", list(BUILT_IN.values()), ids=lambda kind: kind.name)
def test_a_kind_has_the_stages_that_the_registry_says(kind: SwarmKind) -> None:
    module, name = kind.target.split(":")
    plan = getattr(pytest.importorskip(module, reason="not there yet"), name)
    made = plan if inspect.isclass(plan) else get_type_hints(plan)["return"]
    assert made.stages == kind.stages


def test_a_plug_in_is_a_kind_like_any_other(site: Path) -> None:
    install(site, "echoing", "echo = echoing:Echo", PLAN)
    kind = find_kind("echo")
    assert (kind.stages, kind.summary, kind.origin, kind.fault) == (2, "Repeat after me.", "echoing 1.2", "")
    assert kind in list_kinds()
    plan = make_plan(SwarmConfig("s", kind="echo", stages=2), TrainingConfig(steps=7), site)
    assert plan.given == ("s", 7, site)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("points", "code", "fault"),
    [
        ("echo = nothing_there:Echo", PLAN, "ModuleNotFoundError"),
        ("echo = broken:Missing", PLAN, "AttributeError"),
        ("echo = broken:Echo", "1 / 0", "ZeroDivisionError"),
        ("echo = broken:Echo", "raise SystemExit(3)", "SystemExit"),
        ("echo = broken:Echo", "def Echo(*_): ...", "not a subclass of swarmd.plugin.Plan"),
        ("echo = broken:Echo", PLAN.replace("stages = 2", "stages = 0"), "stages is 0"),
        ("echo = broken:Echo", PLAN.replace("stages = 2", "stages = '2'"), "stages is '2'"),
        ("echo = broken:Echo", PLAN.replace("def score", "def grade"), "does not define score"),
        ("gsm8k = broken:Echo", PLAN, "a kind of this name itself"),
        ("two words = broken:Echo", PLAN, "the name of a kind"),
    ],
)
def test_a_broken_plug_in_is_named_and_breaks_no_other(site: Path, points: str, code: str, fault: str) -> None:
    install(site, "broken", points, code)
    install(site, "echoing", "other = echoing:Echo", PLAN)
    found = {kind.origin: kind for kind in list_kinds()}
    assert fault in found["broken 1.2"].fault
    assert found["echoing 1.2"].fault == "" and find_kind("other").stages == 2
    name = points.partition(" =")[0]
    if name in BUILT_IN:
        assert find_kind(name).origin == "swarmd"
    else:
        with pytest.raises(SwarmError, match=r"broken 1\.2") as caught:
            find_kind(name)
        assert fault in caught.value.message and "broken" in caught.value.fix


def test_two_plug_ins_of_one_name_are_both_named(site: Path) -> None:
    install(site, "one", "echo = one:Echo", PLAN)
    install(site, "two", "echo = two:Echo", PLAN)
    assert {kind.origin for kind in list_kinds() if "two installed" in kind.fault} == {"one 1.2", "two 1.2"}
    with pytest.raises(SwarmError, match="two installed"):
        find_kind("echo")


@pytest.mark.parametrize(
    ("init", "fault"), [("swarm.no_such_thing", "AttributeError"), ("raise SystemExit(3)", "SystemExit: 3")]
)
def test_a_plug_in_that_fails_when_it_is_made_is_named(site: Path, init: str, fault: str) -> None:
    install(site, "failing", "echo = failing:Echo", PLAN, init)
    with pytest.raises(SwarmError, match=rf"failing 1\.2 failed: {fault}"):
        make_plan(SwarmConfig("s", kind="echo", stages=2))


def test_wrong_stages_are_told_with_the_right_ones() -> None:
    with pytest.raises(SwarmError) as caught:
        check_kind(SwarmConfig("s", kind="gsm8k"))
    assert "swarm.stages is 1" in caught.value.message and "stages = 3" in caught.value.fix
    assert caught.value.exit_code == ExitCode.BAD_CONFIG
    assert check_kind(SwarmConfig("s", kind="gsm8k", stages=3)).name == "gsm8k"
    with pytest.raises(SwarmError, match="has 1"):
        make_plan(SwarmConfig("s", kind="digits", stages=2))


WRONG = [
    ("digits", {"foo": 1}, "'swarm.options.foo'"),
    ("reasoning-gym", {"tasks": []}, "'swarm.options.tasks'"),
    ("gsm8k", {"rewards": "x"}, "swarm.options.rewards: "),
    ("math-hard", {"persona": "JOE"}, "JOE"),
    ("code", {"programs_rewarded": 7}, "swarm.options.programs_rewarded: "),
    ("code", {"sandbox": "none"}, "swarm.options.sandbox: "),
    ("code", {"limits": {"network": True}}, "'swarm.options.limits.network'"),
    ("proposer-solver", {"level": 6}, "swarm.options.level: "),
    ("proposer-solver", {"limits": {"cpu_s": 0}}, "swarm.options.limits.cpu_s: "),
    ("proposer-solver", {"judge": "ftp://x"}, "not an HTTP address"),
    ("file", {}, "swarm.options.data is missing"),
]


@pytest.mark.parametrize(("kind", "options", "told"), WRONG)
def test_wrong_options_are_told_without_making_a_plan(kind: str, options: dict[str, object], told: str) -> None:
    swarm = SwarmConfig("s", kind=kind, stages=BUILT_IN[kind].stages, options=options)
    with pytest.raises(SwarmError) as caught:
        check_kind(swarm)
    assert told in caught.value.message and caught.value.exit_code == ExitCode.BAD_CONFIG


@pytest.mark.parametrize(("name", "hint"), [("gsm-8k", "Did you mean 'gsm8k'?"), ("x", "Known kinds: digits, reas")])
def test_an_unknown_kind_is_told_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(SwarmError) as caught:
        check_kind(SwarmConfig("s", kind=name))
    assert hint in caught.value.fix
    assert caught.value.exit_code == ExitCode.BAD_CONFIG
