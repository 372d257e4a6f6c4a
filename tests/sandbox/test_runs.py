"""Programs that mean no harm, and what is told of them."""

import os
import threading
import time
from pathlib import Path

import msgspec
import pytest

from swarmd.sandbox import Sandbox, Verdict
from swarmd.sandbox.inside import READY
from swarmd.sandbox.sandbox import ProcessOutcome


def test_a_program_prints_what_it_found(sandbox: Sandbox) -> None:
    verdict = sandbox.run("print(6 * 7)")
    assert (verdict.status, verdict.stdout, verdict.stderr, verdict.exit_code) == ("ok", "42\n", "", 0)
    assert 0 < verdict.wall_s < 20


def test_it_reads_its_own_standard_input_and_nothing_of_the_program(sandbox: Sandbox) -> None:
    verdict = sandbox.run("import sys\nprint(input() + '!')\nprint(len(sys.stdin.read()))", "first\n" + "x" * 300_000)
    assert verdict.stdout == "first!\n300000\n"


def test_input_that_is_not_wanted_does_not_hang(sandbox: Sandbox) -> None:
    assert sandbox.run("import os\nos.close(0)\nprint('done')", "x" * 300_000).stdout == "done\n"


def test_it_is_the_main_module(sandbox: Sandbox) -> None:
    program = (
        "from __future__ import annotations\nimport dataclasses, pickle\n@dataclasses.dataclass\nclass A:\n    x: int\n"
        "def f(n):\n    return 1 if n < 2 else n * f(n - 1)\n"
        "if __name__ == '__main__':\n    print(pickle.loads(pickle.dumps(A(f(5)))))"
    )
    assert sandbox.run(program).stdout == "A(x=120)\n"


def test_an_exception_is_told_with_the_programs_own_lines(sandbox: Sandbox) -> None:
    verdict = sandbox.run("print('before')\nx = 1\nx / 0")
    assert (verdict.status, verdict.stdout, verdict.exit_code) == ("failed", "before\n", 1)
    assert verdict.stderr.splitlines() == [
        "Traceback (most recent call last):",
        '  File "program.py", line 3, in <module>',
        "ZeroDivisionError: division by zero",
    ]


@pytest.mark.parametrize("program", ["def", "x = 'a\0b'", "(" * 5000], ids=["syntax", "null", "deep"])
def test_what_is_no_program_fails(sandbox: Sandbox, program: str) -> None:
    assert sandbox.run(program).status == "failed"


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import sys\nsys.exit(3)", 3),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", 128 + 15),
        ("import os\nos.abort()", 128 + 6),
        ("import ctypes\nctypes.string_at(0)", 128 + 11),
    ],
)
def test_exit_codes_and_signals_are_told(sandbox: Sandbox, program: str, code: int) -> None:
    verdict = sandbox.run(program)
    assert (verdict.status, verdict.exit_code) == ("failed", code)


def test_what_is_no_utf_8_is_replaced(sandbox: Sandbox) -> None:
    verdict = sandbox.run("import sys\nsys.stdout.buffer.write(b'a\\xff\\xfeb')\nprint('\\udc80')")
    assert (verdict.status, verdict.stdout) == ("ok", "a\ufffd\ufffdb\ufffd\n")


def test_runs_do_not_differ_by_the_hash_seed(sandbox: Sandbox) -> None:
    program = "print({str(n) for n in range(50)})"
    assert sandbox.run(program).stdout == sandbox.run(program).stdout != ""


def test_nothing_is_left_from_one_run_to_the_next(sandbox: Sandbox) -> None:
    assert sandbox.run("open('left', 'w').write('x')\nimport os\nprint(os.listdir())").stdout == "['left']\n"
    assert sandbox.run("import os\nprint(os.listdir('.'), os.listdir('/tmp'))").stdout == "[] []\n"


def test_several_run_side_by_side_and_keep_their_order(sandbox: Sandbox) -> None:
    verdicts = sandbox.run_all([*(f"print({number})" for number in range(6)), "1 / 0"])
    assert [verdict.stdout for verdict in verdicts] == [f"{number}\n" for number in range(6)] + [""]
    assert [verdict.status for verdict in verdicts] == ["ok"] * 6 + ["failed"]


@pytest.mark.parametrize(
    ("program", "stdin"),
    [("#" * 70_000, ""), ("print(1)", "x" * 2**21), ("print('\udc80')", ""), ("print(1)", "\ud800")],
    ids=["large program", "large input", "no text", "input no text"],
)
def test_what_is_too_large_or_no_text_is_never_run(sandbox: Sandbox, program: str, stdin: str) -> None:
    assert sandbox.run(program, stdin) == Verdict(status="refused", stderr=sandbox.run(program, stdin).stderr)


def test_no_descriptor_or_process_is_left_in_this_process(sandbox: Sandbox) -> None:
    def list_open() -> set[str]:
        return {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}

    before = list_open()
    for program in ("print(1)", "1 / 0", "print('x' * 10**6)", "import os\nos.close(0)"):
        sandbox.run(program, "input")
    assert {name for name in list_open() - before if not name.startswith("/proc")} == set()


def test_programs_are_ended_when_they_are_no_longer_wanted(sandbox: Sandbox) -> None:
    box, stop = Sandbox(sandbox.limits, sandbox.isolation), threading.Event()
    box.stop_when(stop.is_set)
    assert box.run("print(1)").status == "ok"
    threading.Timer(1.0, stop.set).start()
    begun = time.monotonic()
    programs = [f"import signal\nsignal.pause()  # {number}" for number in range(2 * len(os.sched_getaffinity(0)))]
    assert {verdict.status for verdict in box.run_all(programs)} == {"stopped"}
    assert time.monotonic() - begun < 10.0, "the limits would let them run for 20 s each"
    assert (box.run("print(1)").status, box.run("print(1)").wall_s) == ("stopped", 0.0)
    stop.clear()
    assert box.run("print(1)").status == "ok"


def test_a_program_that_was_not_begun_in_time_is_none_that_took_too_long(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a busy machine took all of its time to set the sandbox up
    late = ProcessOutcome("deadline", 137, b"", b"", 5.0, 0.1)
    monkeypatch.setattr(Sandbox, "_run_isolated", lambda *_: late)
    assert sandbox.run("print(1)").status == "stopped"
    monkeypatch.setattr(Sandbox, "_run_isolated", lambda *_: msgspec.structs.replace(late, stdout=READY))
    assert sandbox.run("print(1)").status == "timeout"
