"""The examples of docs/PYTHON.md, each a program of its own in a directory where nothing of swarmd lies."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import swarmd
from bench.long_log import write_long_log
from swarmd import api
from swarmd.cli import run_command
from swarmd.errors import LogInUse, NodeEnded, NotFoundError
from swarmd.eventlog.fold import oldest_base
from tests.daemon.run_fake import FAKE
from tests.golden.test_golden import LOGS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "PYTHON.md").read_text(encoding="utf-8")
RUN, LOG, READ, FOLLOW = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
# A trainer without a model: what is looked at is the node, not what it learns.
SCRIPTED = '{"trainer": (sys.executable, "-m", "tests.daemon.scripted_trainer")}'
PATIENCE_S = 120.0


def start(text: str, directory: Path, **environ: str) -> subprocess.Popen[str]:
    program = directory / "program.py"
    program.write_text(text)
    return subprocess.Popen(
        [sys.executable, program.name],
        cwd=directory,
        env={**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err[-4000:]
    return out


def test_importing_it_loads_neither_torch_nor_hivemind(tmp_path: Path) -> None:
    names = ", ".join(name for name in swarmd.__all__ if name != "__version__")
    text = f"import sys, swarmd\nfew = len(sys.modules)\nfrom swarmd import {names}\n"
    text += 'print(few, sorted({"torch", "hivemind", "web3", "transformers"} & sys.modules.keys()), swarmd.__version__)'
    few, rest = ran(start(text, tmp_path)).split(" ", 1)
    assert rest == f"[] {swarmd.__version__}\n" and int(few) < 150


def test_the_names_are_those_of_the_page_and_no_others() -> None:
    assert sorted(api.__all__) == sorted(set(swarmd.__all__) - {"__version__"})
    assert set(dir(swarmd)) >= set(api.__all__)
    for name in api.__all__:
        assert getattr(swarmd, name) is getattr(api, name)
        assert name in PAGE or name in ("Log", "Swarm", "RunningNode")  # what the others return
    with pytest.raises(AttributeError, match="open_sesame"):
        _ = swarmd.open_sesame


def test_a_log_is_read(tmp_path: Path) -> None:
    golden = LOGS[-1]
    log = swarmd.open_log(str(golden))
    applied = list(log)
    assert [one.seq for one in applied] == list(range(len(applied))) and log.verify().events == len(applied)
    assert log.state() == applied[-1].after and log.state(4) == applied[4].after == applied[5].before
    assert [one.seq for one in log.fold(last=4)] == [0, 1, 2, 3, 4]
    (tmp_path / "mine").symlink_to(golden)
    assert f"{len(applied)} events, all as they were" in ran(start(LOG, tmp_path))
    with pytest.raises(NotFoundError):
        swarmd.open_log(tmp_path)


def test_the_state_before_what_was_removed_is_not_that_of_a_later_event(tmp_path: Path) -> None:
    write_long_log(tmp_path, 2_000, segment_bytes=20_000, bytes_max=80_000)
    log, first = swarmd.open_log(tmp_path), oldest_base(tmp_path).seq
    assert first > 1
    assert log.state(first - 1) == next(iter(log)).before and log.state(first) == next(iter(log)).after
    with pytest.raises(NotFoundError, match=f"begins at event {first}.*after event {first - 1}, or"):
        log.state(first - 2)


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """The directory of a swarm's first node."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        listen = f"/ip4/127.0.0.1/tcp/{probe.getsockname()[1]}"
    assert run_command(["swarm", "new", "demo", "--dir", str(tmp_path / "mine"), "--listen", listen]) == 0
    return tmp_path / "mine"


def test_a_node_that_ends_by_itself_ends_the_block(demo: Path) -> None:
    """As the page's own example would wait for its round for ever."""
    codes = []

    async def main() -> None:
        network, trainer = ((sys.executable, FAKE, *words) for words in (("network",), ("trainer", "fault")))
        async with swarmd.open_node(demo / "config.toml", programs={"network": network, "trainer": trainer}) as node:
            codes.append(await node.wait())
            await anyio.sleep(PATIENCE_S)

    with pytest.raises(NodeEnded, match="code 66: trainer worker: there is no model in /nowhere") as ended:
        anyio.run(main)
    assert ended.value.exit_code == 66 and codes == [66]


QUIET = """
import sys, anyio, structlog, swarmd
from swarmd.errors import NodeEnded

told = []

def note(logger, method, fields):
    told.append(method)
    raise structlog.DropEvent

if "own" in OPTIONS:
    structlog.configure(processors=[note])

async def main():
    fake = {worker: (sys.executable, FAKE, *words) for worker, *words in (("network", "network"), FAULTY)}
    async with swarmd.open_node("mine/config.toml", programs=fake) as node:
        await node.wait()

try:
    anyio.run(main)
except NodeEnded:
    print(sorted(set(told)), structlog.is_configured())
"""


@pytest.mark.parametrize("options", ["", "own"])
def test_a_node_in_a_program_says_what_structlog_is_set_up_to_say_and_else_warnings(
    tmp_path: Path, demo: Path, options: str
) -> None:
    values = {"OPTIONS": options, "FAKE": str(FAKE), "FAULTY": ("trainer", "trainer", "fault")}
    text = "".join(f"{name} = {value!r}\n" for name, value in values.items()) + QUIET
    process = start(text, tmp_path, PYTHONPATH=str(ROOT))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    if options:
        assert "'debug'" in out and "'info'" in out and out.endswith("] True\n") and not err
    else:
        assert out == "[] False\n"
        assert "trainer worker exited" in err and "worker_started" not in err


def test_errors_of_a_block_come_out_of_it_as_they_were_raised(demo: Path) -> None:
    raised = ExceptionGroup("two", [ValueError("one"), TypeError("another")])

    async def main() -> None:
        async with swarmd.open_swarm(demo / "swarm.toml"):
            raise raised

    with pytest.raises(ExceptionGroup) as seen:
        anyio.run(main)
    assert seen.value is raised


def test_a_node_runs_inside_a_program_and_its_swarm_is_read_from_another(tmp_path: Path, demo: Path) -> None:
    config = demo / "config.toml"
    config.write_text(re.sub(r"(?m)^steps = .*", "steps = 2", config.read_text()))
    # It goes on until the other programs are done: they make the file.
    text = RUN.replace('open_node("mine/config.toml")', f'open_node("mine/config.toml", programs={SCRIPTED})')
    text = text.replace("clock.round < 2", 'clock.round < 2 or not Path("read").exists()')
    node = start(f"import sys\nfrom pathlib import Path\n{text}", tmp_path, PYTHONPATH=str(ROOT))
    try:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "mine").symlink_to(tmp_path / "mine")
        # Its name is "creator" as soon as its membership was read.
        assert re.search(r"round \d+ stage 0\n\w[\w ]* 12D3Koo", ran(start(READ, elsewhere)))
        assert re.search(r"(?m)^\d+ 0 1 ", ran(start(FOLLOW, elsewhere)))
        busy = f"import anyio, swarmd\nfrom swarmd.errors import {LogInUse.__name__}\n"
        busy += "async def main():\n    async with swarmd.open_node('mine/config.toml'):\n        pass\n"
        busy += f"try:\n    anyio.run(main)\nexcept {LogInUse.__name__} as error:\n    print('in use')\n"
        assert "in use" in ran(start(busy, elsewhere))
        (tmp_path / "read").touch()
        assert re.search(r"(?m)^\w.* in round \d+$", ran(node))
    finally:
        node.kill()
    out = ran(start(LOG, tmp_path))
    assert "is in stopped" in out and "all as they were" in out
