"""What the documents name is there: files, sections, commands, options, keys, and every reason for a refusal."""

import ast
import importlib.util
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any, get_type_hints

import click
import pytest
from typer.main import get_command

from swarmd import cli
from swarmd.config import Config, find_struct_type
from swarmd.swarms.registry import BUILT_IN

ROOT = Path(__file__).resolve().parent.parent
NO_KEYS = (".toml", ".py", ".pem", ".proto", ".json", ".key", ".pass")
PROOFS = tomllib.loads((ROOT / "tests" / "proofs.toml").read_text(encoding="utf-8"))
MANIFEST_ONLY = {"chain.min_submissions", "chain.max_stage_s"}


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


PAGES = tracked("*.md")
# docs/CLI.md is made from the commands themselves.
COMMANDED = [page for page in tracked("*.md", "*.toml", "*.md.txt", "*.service") if page.name != "CLI.md"]


def anchor_of(heading: str) -> str:
    """As GitHub makes it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors_of(page: Path) -> list[str]:
    return [anchor_of(heading) for heading in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)]


def broken_links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        place, _, anchor = link.partition("#")
        target = page.parent / place if place else page
        if link.startswith("http"):
            continue
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def commands_in(text: str) -> list[str]:
    """Every command line of swarmd's, from code blocks, comments and running text."""
    verbs = "|".join(cli.VERBS)
    joined = re.sub(r"\\\n\s*(?:#\s*)?", " ", text)
    lines = re.findall(rf"^(?:#?\s*)(?:\.venv/bin/)?(swarmd (?:{verbs})\b[^\n`]*)$", joined, re.M)
    return lines + re.findall(rf"`(swarmd (?:{verbs})\b[^`]*)`", joined.replace("\n", " "))


def words_of(line: str) -> list[str]:
    try:
        return shlex.split(re.split(r"\s{2,}|\s#", line)[0])[1:]
    except ValueError:
        return line.split()[1:]


def unknown_in(line: str) -> list[str]:
    """Words of a command line that are no verb, and options that its verb does not have."""
    group: Any = get_command(cli.app)
    words = words_of(line)
    command, words = cli.load_command(words[0]), words[1:]
    while hasattr(command, "get_command") and words and re.fullmatch(r"[a-z-]+", words[0]):
        found = command.get_command(click.Context(group), words[0])
        if found is None:
            return [words[0]]
        command, words = found, words[1:]
    known = {"--help", *(option for parameter in command.params for option in parameter.opts)}
    return [word for word in words if word.startswith("--") and word.split("=")[0].rstrip(",.;:)]") not in known]


@pytest.mark.parametrize("page", [page for page in COMMANDED if "swarmd " in page.read_text("utf-8")], ids=name_of)
def test_commands_and_options_are_there(page: Path) -> None:
    lines = commands_in(page.read_text(encoding="utf-8"))
    assert [(line, unknown) for line in lines if (unknown := unknown_in(line))] == []


def keys_of(kind: type, prefix: str = "") -> set[str]:
    keys = set()
    for name, hint in get_type_hints(kind).items():
        inner = find_struct_type(hint)
        keys.add(prefix + name)
        if inner is not None:
            keys |= keys_of(inner, f"{prefix}{name}.")
    return keys


KEYS = keys_of(Config) | MANIFEST_ONLY


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_keys_are_those_of_the_configuration(page: Path) -> None:
    tables = "|".join(sorted(key for key in KEYS if "." not in key))
    named = re.findall(rf"`((?:{tables})\.[a-z_.]+?)(?: = [^`]*)?`", page.read_text(encoding="utf-8"))
    options = [key for key in named if key.startswith("swarm.options.")]
    assert sorted({key for key in named if not key.endswith(NO_KEYS)} - set(options) - KEYS) == []


def test_every_reason_for_a_refusal_is_explained() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in tracked("swarmd/*.py"))
    reasons = set(re.findall(r'RecordRejected\(\s*"([a-z-]+)"', source))
    pages = "".join((ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("TRAINING", "PROTOCOL"))
    assert len(reasons) > 30
    assert sorted(reason for reason in reasons if f"`{reason}`" not in pages) == []


def test_every_kind_and_decision_is_in_its_table() -> None:
    front, swarms = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/SWARMS.md"))
    for kind in BUILT_IN.values():
        assert f"| [`{kind.name}`](docs/swarms/{kind.name}.md) | {kind.stages} |" in front
        assert f"| `{kind.name}` | {kind.stages} |" in swarms
    index = (ROOT / "docs/adr/README.md").read_text(encoding="utf-8")
    assert all(f"]({page.name})" in index for page in tracked("docs/adr/0*.md"))


def missing_tests(proofs: dict[str, list[str]]) -> list[str]:
    """What names no test, and tests that are not there."""
    missing = [what for what, tests in proofs.items() if not tests]
    for file, _, name in (test.partition("::") for tests in proofs.values() for test in tests):
        if not re.search(rf"\bdef {name}\b", (ROOT / "tests" / file).read_text(encoding="utf-8")):
            missing.append(f"{file}::{name}")
    return missing


def test_every_requirement_names_tests_that_are_there() -> None:
    assert len(PROOFS["requirements"]) == 30 and missing_tests(PROOFS["requirements"]) == []


def test_every_attack_names_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "SECURITY.md").read_text(encoding="utf-8").partition("## What holds")[2]
    rows = re.findall(r"^\| ([^|]+) \|(?: [^|]+ \|){2}$", text, re.M)
    assert [row for row in rows if row != "Attack"] == list(PROOFS["attacks"])
    assert len(PROOFS["attacks"]) > 40 and missing_tests(PROOFS["attacks"]) == []


def names_in(path: Path) -> set[str]:
    """What a module defines: functions, classes, "Class.member", and what is assigned to."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names |= bound_by(node)
        inner = node.body if isinstance(node, ast.ClassDef) else []
        names |= {f"{node.name}.{name}" for each in inner for name in bound_by(each)}
    return names


def bound_by(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def places_in(text: str) -> list[tuple[str, str]]:
    """(path, name or "") of each file, folder and `file::name` in backticks, from the root or from `swarmd/` on."""
    return re.findall(r"`([\w.-]+/[\w./-]*|[\w/]+\.(?:py|yaml))(?:::([\w.]+))?`", text)


def resolve(place: str) -> Path | None:
    return next((path for path in (ROOT / place, ROOT / "swarmd" / place) if path.exists()), None)


def missing_in(text: str) -> list[str]:
    """Files, folders and names in them that a text has in backticks and that are not there."""
    missing = []
    for place, name in places_in(text):
        path = resolve(place)
        if path is None or (name and name not in names_in(path)):
            missing.append(f"{place}::{name}" if name else place)
    return missing


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/ARCHITECTURE.md"])
def test_files_folders_and_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").replace("KIND", "file")
    assert len(places_in(text)) > 40 and missing_in(text) == []


def test_the_classes_of_the_architecture_are_there() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([A-Z][a-z]\w+)(?:\.\w+)?`", text)) - {"Literal"}
    defined = {name for path in tracked("swarmd/*.py") for name in names_in(path)}
    assert len(named) > 15 and named <= defined


def test_the_code_map_has_a_row_for_each_layer() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Code map")[2]
    rows = re.findall(r"^\| [^|`]+ \| `(swarmd/[\w.]+)` \|", text, re.M)
    layers = re.findall(r'^    "(swarmd\..*)",$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    packages = {name for layer in layers for name in re.findall(r"swarmd\.(\w+)", layer)}
    assert {f"swarmd/{name}" for name in packages if (ROOT / "swarmd" / name).is_dir()} == set(rows) - {
        "swarmd/api.py",
        "swarmd/manifest.py",
        "swarmd/plugin.py",
        "swarmd/units.py",
    }


def test_rooms_are_described_as_they_describe_themselves() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("The rooms of a package")[2]
    rows = dict(re.findall(r"^\| `(\w+/\w+)` \| (.*) \|$", text, re.M))
    docs = {
        f"{path.parts[-3]}/{path.parts[-2]}": ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for path in (ROOT / "swarmd").glob("*/*/__init__.py")
    }
    assert rows == {room: doc.partition("\n")[0].removesuffix(".") for room, doc in docs.items()}


def test_every_package_says_what_it_is() -> None:
    found = {
        name_of(path): ast.get_docstring(ast.parse(path.read_text("utf-8")))
        for path in tracked("swarmd/__init__.py", "swarmd/*/__init__.py")
    }
    assert len(found) > 20 and [name for name, doc in found.items() if not doc] == []


def test_contributing_names_targets_and_modules_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    shown = re.findall(r"(?:`|^)make ([a-z0-9 -]+)", text, re.M)
    assert len(shown) > 20 and {word for words in shown for word in words.split()} - targets == set()
    modules = set(re.findall(r"python -m ([\w.]+)", text))
    assert len(modules) > 1 and [name for name in modules if importlib.util.find_spec(name) is None] == []
