"""`swarmd model fit`: the table for people and for programs."""

import json
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.errors import ExitCode
from swarmd.training.models.known import TABLE
from tests.cli.owning import Shell


def test_the_pool_is_listed_with_what_is_free(shell: Shell) -> None:
    out = shell.well("model", "fit", "--device", "cpu")
    assert out.startswith("cpu: ") and "GiB free" in out
    assert all(row.name in out for row in TABLE if row.kind == "general")


def test_one_model_is_told_with_its_terms(tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "node.toml"
    file.write_text('role = "coordinator"\n[swarm]\nid = "s"\n[training]\nbeta = 0.1\npool = ["coder"]\n')
    command = ["model", "fit", "--device", "cpu", "--model", "embedded", "--config", str(file)]
    told = json.loads(shell.well(*command, "--json"))
    (model,) = told["models"]
    assert model["parameters"] == 533_248 and model["fits"] and model["need_bytes"] < told["free_bytes"]
    assert model["terms"]["reference"] == model["terms"]["weights"] == 4 * 533_248
    printed = [line.split() for line in shell.well(*command).splitlines()]
    sizes = {
        words[0]: float(words[1])
        for words in printed
        if words[2:] and words[2].startswith("GiB") and words[0] != "model"
    }
    turns = max(sizes.pop("training"), sizes.pop("drawing"))
    assert sum(sizes.values()) + turns == pytest.approx(model["need_bytes"] / 2**30, abs=0.05), "terms add up"


def test_a_card_that_is_not_here_is_reckoned_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "node.toml"
    file.write_text('role = "coordinator"\n[swarm]\nid = "s"\n[training]\nmodel = "embedded"\ndevice = "cuda"\n')
    assert run_command(["model", "fit", "--config", str(file)]) == ExitCode.BAD_CONFIG
    told = capsys.readouterr().err
    assert "torch finds none" in told and "this one has no CUDA" in told and "--memory 24" in told
    assert run_command(["model", "fit", "--config", str(file), "--memory", "24"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert out.startswith("cuda: 24.0 of 24.0 GiB free") and "drawing" in out
    assert [row.name for row in TABLE if row.name in out] == []  # the file's model, not the pool
    assert run_command(["model", "fit", "--memory", "24"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert any("0.5B" in line and line.endswith("fits") for line in lines)
    assert any("72B" in line and "does not fit" in line for line in lines)


@pytest.mark.parametrize("name", ["x", "./nowhere"])
def test_a_model_that_is_not_known_is_blamed_on_the_option_that_names_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], shell: Shell
) -> None:
    assert run_command(["model", "fit", "--model", name]) in (ExitCode.BAD_CONFIG, ExitCode.NO_INPUT)
    told = capsys.readouterr().err
    assert f"--model {name}" in told and "training.pool" not in told
    assert "a directory with a model" in told and "user/model-7B" in told
    file = tmp_path / "node.toml"
    file.write_text('role = "coordinator"\n[swarm]\nid = "s"\n[training]\npool = ["x"]\n')
    assert "training.pool" in shell.fails(ExitCode.BAD_CONFIG, "model", "fit", "--config", file)
