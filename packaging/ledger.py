"""How much there is of swarmd, by room, now and at the last release: `make ledger`. It judges nothing.

`python packaging/ledger.py --release 0.2.0` writes what is there now into packaging/ledger.json, as the release to
compare with; with `--tree DIR` it measures another checkout. Only the standard library.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = ROOT / "packaging" / "ledger.json"
COLUMNS = ("lines", "files", "import lines", "Protocols", "only __call__")

Figures = dict[str, int]


def measure_source(source: str) -> Figures:
    nodes = list(ast.walk(ast.parse(source)))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    protocols = [node for node in nodes if isinstance(node, ast.ClassDef) and is_protocol(node)]
    values = (
        len(source.splitlines()),
        1,
        sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports),
        len(protocols),
        sum(members(node) == ["__call__"] for node in protocols),
    )
    return dict(zip(COLUMNS, values, strict=True))


def is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).partition("[")[0] in ("Protocol", "typing.Protocol") for base in node.bases)


def members(protocol: ast.ClassDef) -> list[str]:
    """Its methods and fields."""
    named = [
        getattr(part, "name", None) or getattr(getattr(part, "target", None), "id", None) for part in protocol.body
    ]
    return [name for name in named if name]


def configuration_keys(tree: Path) -> int:
    """Fields of the sections of the configuration."""
    module = ast.parse((tree / "swarmd" / "config.py").read_text(encoding="utf-8"))
    sections = [node for node in module.body if isinstance(node, ast.ClassDef)]
    return sum(isinstance(part, ast.AnnAssign) for section in sections for part in section.body)


def measure(tree: Path) -> dict[str, Figures]:
    """Each room's figures, those of the tests, and what is counted once, under `all`."""
    rooms: dict[str, Counter[str]] = {}
    for top in ("swarmd", "tests"):
        for path in sorted((tree / top).rglob("*.py")):
            parts = path.relative_to(tree).parts
            room = "tests" if top == "tests" else parts[1] if len(parts) > 2 else "(top level)"
            rooms.setdefault(room, Counter()).update(measure_source(path.read_text(encoding="utf-8")))
    product = sum((figures for room, figures in rooms.items() if room != "tests"), Counter())
    documents = [*tree.glob("*.md"), *(tree / "docs").rglob("*.md")]
    once = {
        "configuration keys": configuration_keys(tree),
        "words of documents": sum(len(path.read_text(encoding="utf-8").split()) for path in documents),
    }
    return {room: dict(figures) for room, figures in {**rooms, "all of swarmd": product}.items()} | {"once": once}


def table(now: dict[str, Figures], before: dict[str, Figures]) -> Iterator[str]:
    yield f"{'':16}" + "".join(
        f"{column:>18}" for column in ("lines", "files", "imports", "Protocols", "only __call__")
    )
    last = ["all of swarmd", "tests"]
    for room in [*sorted({*now, *before} - {*last, "once"}), *last]:
        here, there = now.get(room, {}), before.get(room, {})
        cells = [compared(here.get(each, 0), there.get(each, 0)) for each in COLUMNS]
        cells[2] = f"{share(here):.1f} % ({share(here) - share(there):+.1f})"
        yield f"{room:16}" + "".join(f"{cell:>18}" for cell in cells)
    for name, count in now["once"].items():
        yield f"{name}: {compared(count, before['once'].get(name, 0))}"


def share(figures: Figures) -> float:
    return 100 * figures.get("import lines", 0) / max(1, figures.get("lines", 0))


def compared(now: int, before: int) -> str:
    return f"{now:,} ({now - before:+,})" if now != before else f"{now:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", metavar="NAME", help="write the figures as those of this release")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to measure")
    options = parser.parse_args()
    now = measure(options.tree)
    if options.release:
        rooms = ",\n".join(f"  {json.dumps(room)}: {json.dumps(figures)}" for room, figures in sorted(now.items()))
        text = f'{{"release": {json.dumps(options.release)}, "figures": {{\n{rooms}\n}}}}\n'
        RELEASE.write_text(text, encoding="utf-8")
        return
    release = json.loads(RELEASE.read_text(encoding="utf-8"))
    print(f"How much there is now (and since {release['release']}):")
    print("\n".join(table(now, release["figures"])))


if __name__ == "__main__":
    main()
