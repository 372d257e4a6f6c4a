"""`swarmd sim` from the command line."""

import pytest
import typer
from typer.testing import CliRunner

from swarmd.cli.sim import parse_profile_fields, sim
from swarmd.errors import ConfigError
from tests.sim.mutants import MUTANTS
from tests.sim.planting import planted

SMALL = ["--nodes", "3", "--hours", "0.3", "--set", "calm_s=600"]

app = typer.Typer()
app.command()(sim)


def call(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*args], standalone_mode=False)
    return int(result.return_value or 0), result.output


def test_it_prints_a_line_for_each_seed() -> None:
    code, output = call("--seed", "4", "--seeds", "2", *SMALL)
    lines = output.splitlines()
    assert code == 0
    assert [line.split(":")[0] for line in lines[:2]] == ["seed 4", "seed 5"]
    assert all("0 violations" in line and "events/s" in line and "trace" in line for line in lines[:2])
    assert lines[2].startswith("2 seeds, 0 broken")


def test_a_violation_fails_the_command_and_can_be_repeated() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "gathering has no deadline")
    with planted(mutant):
        code, output = call("--seed", "0", *SMALL)
        line = next(line for line in output.splitlines() if "Repeat it with: " in line)
        again = line.split("Repeat it with: swarmd sim ")[1].split()
        code_again, output_again = call(*again)
    assert code == code_again == 1
    assert "VIOLATION seed 0" in output
    assert output_again.splitlines()[0] == output.splitlines()[0]


def test_a_large_swarm_has_a_table() -> None:
    options = ["--hours", "0.1", "--churn", "1", "--partition", ".1", "--lossy", ".02", "--set", "shard_members=4"]
    code, output = call("--large", "--nodes", "12", "--set", "min_peers=8", *options)
    assert code == 0 and "12 nodes, 0.1 h" in output.splitlines()[0]
    assert all(f"  {row}" in output for row in ("stages that closed", "of them: reports", "memory of the simulator"))


def test_wrong_fields_are_named() -> None:
    with pytest.raises(ConfigError, match="no 'colour'"):
        parse_profile_fields(["colour=red"], None, None)
    with pytest.raises(ConfigError, match="stage_s"):
        parse_profile_fields(["stage_s=long"], None, None)
    for given in ("nodes=0", "hours=-1", "hours=nan", "stage_s=0", "churn=-0.5", "block_s=inf"):
        with pytest.raises(ConfigError, match=given.partition("=")[0]):
            parse_profile_fields([given], None, None)
    assert parse_profile_fields(["stage_s=30"], 4, None) == {"stage_s": 30.0, "nodes": 4}
