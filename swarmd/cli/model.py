"""`swarmd model`: build the embedded model anew, measure one on the held-out questions, or see which ones fit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarmd.cli.fit import fit
from swarmd.errors import ModelError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Build a model, measure one, see which fit.")
app.command("fit")(fit)


@app.command()
def build(
    out: Annotated[Path, typer.Option("--out", help="Directory to write.")] = Path("embedded-model"),
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same weights.")] = 0,
) -> None:
    """Make the embedded model from nothing; about half a minute on one core."""
    from swarmd.training.quiet import quieten
    from swarmd.training.recipe import build_model

    quieten()

    def report(step: int, loss: float, accuracy: float) -> None:
        typer.echo(f"step {step:4d}  loss {loss:.3f}  development accuracy {accuracy:.3f}")

    out.mkdir(parents=True, exist_ok=True)
    built = build_model(out, seed, report)
    typer.echo(f"{out}: {built.parameters:,} parameters, {built.size_bytes:,} bytes, {built.seconds:.0f} s")
    typer.echo(f"weights {built.digest}")


@app.command()
def check(
    directory: Annotated[Path | None, typer.Argument(help="The model; without it, the one shipped.")] = None,
    questions: Annotated[int, typer.Option("--questions", min=1, help="Held-out questions of each task.")] = 400,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the draws.")] = 0,
) -> None:
    """Print a model's accuracy on the held-out questions of the digit tasks."""
    from swarmd.config import SwarmConfig
    from swarmd.swarms.digit_plan import DigitsPlan
    from swarmd.training.evaluation import mean_accuracy
    from swarmd.training.quiet import quieten
    from swarmd.training.recipe import check_model
    from swarmd.training.source import EMBEDDED_DIR

    quieten()
    place = directory or EMBEDDED_DIR
    if not (place / "config.json").is_file():
        raise ModelError(f"there is no model in {place}", "Name a directory that `swarmd model build` wrote")
    result = check_model(place, DigitsPlan(SwarmConfig(id="check")), questions, seed)
    for task, accuracy in result.items():
        typer.echo(
            f"{task:20} correct {accuracy.correct:.3f}  well-formed {accuracy.formatted:.3f}  of {accuracy.questions}"
        )
    typer.echo(f"{'mean':20} correct {mean_accuracy(result) or 0.0:.3f}")
