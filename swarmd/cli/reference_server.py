"""`swarmd reference-server`: a frozen model that computes reference log-probabilities for trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from swarmd.cli.options import ListenAt, RequestToken
from swarmd.config import TrainingConfig
from swarmd.errors import SwarmdError


def reference_server(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="As training.model: embedded, a directory, or a Hugging Face id.")
    ] = "embedded",
    revision: Annotated[str, typer.Option(metavar="REV", help="As training.revision.")] = "",
    listen: ListenAt = "127.0.0.1:59807",
    token_file: RequestToken = "",
    compat: Annotated[bool, typer.Option("--compat", help="Also answer simple_GRPO's /upload and /get.")] = False,
    device: Annotated[Literal["auto", "cpu", "cuda", "mps", "xpu"], typer.Option(help="As training.device.")] = "auto",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="As training.dtype.")
    ] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="torch's threads, 0 for as many as fit.")] = 0,
    jobs_max: Annotated[int, typer.Option(min=1, help="Jobs kept, waiting or not yet acknowledged.")] = 256,
    kept_mib: Annotated[int, typer.Option(min=1, help="MiB that their inputs and results take.")] = 1024,
    body_mib: Annotated[int, typer.Option(min=1, help="MiB of one request.")] = 64,
    sequences_max: Annotated[int, typer.Option(min=1, help="Sequences of one job.")] = 1024,
    tokens_max: Annotated[int, typer.Option(min=2, help="Tokens of one sequence.")] = 8192,
    age_s: Annotated[float, typer.Option(min=0.1, help="A job nobody asked for during this time is dropped.")] = 600.0,
    lease_s: Annotated[float, typer.Option(min=0.1, help="A result handed out stays at least so long.")] = 120.0,
) -> int:
    """Serve reference log-probabilities, until told to stop."""
    import asyncio

    from swarmd.http_server import check_listen, load_token, parse_listen
    from swarmd.observe.logs import configure, tell_fatal

    address, token = parse_listen(listen, 59807), load_token(token_file, Path.cwd())
    check_listen(address, token, "the reference server")  # before torch is loaded
    configure("info", "auto", secrets=[token] if token else [])

    from swarmd.training.library_logging import quieten

    quieten()  # before anything imports datasets
    from swarmd.training.reference.server import QueueLimits, ServerLimits, run_server

    training = TrainingConfig(model=model, revision=revision, device=device, dtype=dtype, threads=threads)
    limits = ServerLimits(
        body_mib << 20, sequences_max, tokens_max, QueueLimits(jobs_max, kept_mib << 20, age_s, lease_s)
    )
    try:
        asyncio.run(run_server(training, address, token, compat, limits))
    except SwarmdError as error:
        tell_fatal(error)
        return error.exit_code
    return 0
