"""The page's files: modules that parse, short ones, and nothing that could turn text into markup or code."""

import re
import subprocess
from pathlib import Path

import pytest

from swarmd.web import shapes
from tests.programs import path_of

STATIC = Path(shapes.__file__).parent / "static"
MODULES = sorted(STATIC.glob("*.js"))
PAGES = sorted(STATIC.glob("*.html"))
MODULE_LINES_MAX = 300
PARSE = """
const { SourceTextModule } = require("vm"), { readFileSync } = require("fs"), files = process.argv.slice(1);
for (const identifier of files) new SourceTextModule(readFileSync(identifier, "utf8"), { identifier });
console.log(files.length);
"""
DANGEROUS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|createContextualFragment|DOMParser"
)
EXPORT = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.MULTILINE)
ELSEWHERE = re.compile(r"""(?:src|href|action|from|import\()\s*[=(]?\s*["'](?:https?:)?//""")


KEPT = """
const { Log } = await import(process.argv[1]), log = new Log();
for (let seq = 0; seq < 100000; seq += 1) log.append({ seq });
console.log(log.pages.size, log.end, log.row(99999).seq);
"""


def test_a_page_that_stays_open_keeps_a_bounded_part_of_the_log() -> None:
    options = ["--experimental-default-type=module", "--input-type=module", "--eval", KEPT]
    ended = subprocess.run(
        [path_of("node"), *options, (STATIC / "log.js").as_uri()], capture_output=True, text=True, check=False
    )
    assert ended.stdout.split() == ["60", "100000", "99999"], ended.stderr


def test_there_are_modules_and_pages() -> None:
    assert len(MODULES) > 20
    assert {page.name for page in PAGES} == {"swarm.html", "node.html", "login.html", "lanes.html", "nodes.html"}


def test_every_module_parses() -> None:
    command = [path_of("node"), "--experimental-vm-modules", "--eval", PARSE, *map(str, MODULES)]
    parsed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert parsed.returncode == 0, parsed.stderr
    assert parsed.stdout.split() == [str(len(MODULES))]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_a_module_is_short_and_makes_no_markup_of_text(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MODULE_LINES_MAX
    assert DANGEROUS.findall(text) == []
    assert ELSEWHERE.findall(text) == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_what_a_module_exports_somebody_imports(module: Path) -> None:
    exported = EXPORT.findall(module.read_text(encoding="utf-8"))
    others = "\n".join(other.read_text(encoding="utf-8") for other in MODULES if other != module)
    assert [name for name in exported if not re.search(rf"\b{name}\b", others)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_code_or_style_of_its_own(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", text) == []
    assert ELSEWHERE.findall(text) == []
