"""`swarmd model`: build the embedded model anew, measure one on held-out questions, see which fit, get others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarmd.cli.fit import fit
from swarmd.cli.model_fetch import fetch
from swarmd.cli.model_get import get
from swarmd.errors import ModelError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Build a model, measure one, see which fit, get a published one, or a swarm's.",
)
app.command("fit")(fit)
app.command("fetch")(fetch)
app.command("get")(get)


@app.command()
def build(
    model: Annotated[str, typer.Argument(help="Which of the embedded models, or the kind of swarm it is for.")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Directory to write; without it, MODEL-model.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same weights.")] = 0,
) -> None:
    """Make an embedded model from nothing; half a minute to a few minutes on one core."""
    from swarmd.training.embedded import build_model, find_recipe
    from swarmd.training.library_logging import quieten

    quieten()
    recipe = find_recipe(model)
    directory = out or Path(f"{recipe.model}-model")

    def report(step: int, loss: float, accuracy: float) -> None:
        typer.echo(f"step {step:4d}  loss {loss:.3f}  development accuracy {accuracy:.3f}")

    directory.mkdir(parents=True, exist_ok=True)
    built = build_model(directory, recipe, seed, report)
    typer.echo(f"{directory}: {built.parameters:,} parameters, {built.size_bytes:,} bytes, {built.seconds:.0f} s")
    typer.echo(f"weights {built.digest}")


@app.command()
def check(
    directory: Annotated[Path | None, typer.Argument(help="The model; without it, the one shipped.")] = None,
    model: Annotated[str, typer.Option("--as", help="Which of the embedded models it is to be measured as.")] = "",
    questions: Annotated[int, typer.Option("--questions", min=1, help="Held-out questions of each task.")] = 400,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the draws.")] = 0,
) -> None:
    """Print a model's accuracy on the held-out questions of the tasks that it was made for."""
    if directory is not None and not (directory / "config.json").is_file():
        raise ModelError(f"there is no model in {directory}", "Name a directory that `swarmd model build` wrote")
    from swarmd.training.embedded import check_model, find_recipe
    from swarmd.training.evaluation import mean_accuracy
    from swarmd.training.library_logging import quieten
    from swarmd.training.models.source import MODELS_DIR

    quieten()
    recipe = find_recipe(model)
    place = directory or MODELS_DIR / recipe.model
    result = check_model(place, recipe.make_plan(), recipe.answer_tokens, questions, seed)
    for task, accuracy in result.items():
        typer.echo(
            f"{task:20} correct {accuracy.correct:.3f}  well-formed {accuracy.formatted:.3f}  of {accuracy.questions}"
        )
    typer.echo(f"{'mean':20} correct {mean_accuracy(result) or 0.0:.3f}")
