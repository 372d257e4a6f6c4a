"""`swarmd chat` and `swarmd model serve`: which model they find, what they print, and what they refuse."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.cli import chat, run_command
from swarmd.errors import ExitCode
from tests.cli.owning import Shell
from tests.e2e.models import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


def test_one_question_is_answered_and_the_same_with_the_same_seed(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for seed in ("1", "1", "2"):
        options = ("--ask", "hello", "--tokens", "12", "--seed", seed, "--temperature", "2")
        assert run_command(["chat", str(model), *options]) == ExitCode.OK
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != answers[2] and answers[0].endswith("\n")


def test_a_conversation_is_remembered_until_it_is_reset(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[list[str]] = []
    encode = "swarmd.training.serving.loading.encode_chat"

    def listen(policy: object, messages: list[chat.Message]) -> list[int]:
        said.append([f"{each.role}: {each.content}" for each in messages])
        return [5, 60, 70]

    monkeypatch.setattr(encode, listen)
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n/reset\nthree\n/quit\nfour\n"))
    options = ("--system", "Be brief.", "--tokens", "3", "--temperature", "0")
    assert run_command(["chat", str(model), *options]) == ExitCode.OK
    answer = capsys.readouterr().out.split("\n")[0]
    begin = "system: Be brief."
    assert said == [
        [begin, "user: one"],
        [begin, "user: one", f"assistant: {answer}", "user: two"],
        [begin, "user: three"],
    ]


def test_a_conversation_that_is_too_long_can_be_begun_again(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a" * 3000 + "\n/reset\nhello\n"))
    assert run_command(["chat", str(model), "--tokens", "2"]) == ExitCode.OK
    told = capsys.readouterr()
    assert "the model reads 2048. /reset begins another" in told.err and told.out.strip("\n")


def test_an_interrupted_answer_ends_there(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nagain\n"))
    interrupts: Iterator[bool] = iter([False, False, True])
    echo = chat.typer.echo

    def interrupted(*told: object, **more: object) -> None:
        if more.get("nl") is False and next(interrupts, False):
            raise KeyboardInterrupt
        echo(*told, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("swarmd.cli.chat.typer.echo", interrupted)
    assert run_command(["chat", str(model), "--tokens", "8", "--temperature", "0"]) == ExitCode.OK
    first, second = capsys.readouterr().out.rstrip("\n").split("\n")[:2]
    assert len(first) < len(second)


@pytest.mark.parametrize("verb", [("chat",), ("model", "serve")], ids=["chat", "serve"])
def test_what_is_no_model_is_named(shell: Shell, verb: tuple[str, ...]) -> None:
    assert "there is no node in" in shell.fails(ExitCode.NO_INPUT, *verb, ".")
    assert "nowhere" in shell.fails(ExitCode.NO_INPUT, *verb, "./nowhere")


def test_others_are_never_answered_without_a_token(shell: Shell) -> None:
    for host in ("0.0.0.0", "[::]", "192.0.2.1"):
        assert "asks for no token" in shell.fails(ExitCode.BAD_CONFIG, "model", "serve", "x", "--listen", f"{host}:0")
