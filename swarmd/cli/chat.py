"""`swarmd chat`: chat with a model, or a node's newest checkpoint; also loads models for `model serve`."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from swarmd.cli.options import locate_node, require_node
from swarmd.config import Device, Dtype, TrainingConfig, load_config
from swarmd.errors import ConfigError, GenerationFailed
from swarmd.paths import NodeDirectory
from swarmd.swarms.plan import Message
from swarmd.training.library_logging import silence_libraries
from swarmd.training.models.files import ADAPTERS, CONFIG

if TYPE_CHECKING:
    from swarmd.training.serving.decoder import Decoder

RESET, QUIT = "/reset", "/quit"

ModelPlace = Annotated[
    str,
    typer.Argument(metavar="DIR", help="A model, checkpoint or node directory, or as training.model."),
]
ModelDevice = Annotated[Device | None, typer.Option("--device", help="As training.device.")]
ModelDtype = Annotated[Dtype | None, typer.Option("--dtype", help="As training.dtype.")]
Threads = Annotated[int, typer.Option("--threads", min=0, help="torch's threads; 0: automatic.")]


def load_decoder(directory: str, device: Device | None, dtype: Dtype | None, threads: int) -> "Decoder":
    """Load a model, or a node's newest checkpoint; options override the node's configuration.

    Raises:
        NotFoundError: the directory is neither a model's nor a node's.
        ModelError: there is no such model or no checkpoint, or it cannot be loaded.
        ConfigError: the node's configuration is invalid, there is no such device, or a package is missing.
    """
    place = Path(directory).expanduser()
    is_model = any((place / name).is_file() for name in (CONFIG, ADAPTERS))
    if place.is_dir() and not is_model:
        require_node(locate_node(place))  # fails before the slow import of torch
    silence_libraries()
    from swarmd.training.serving.decoder import Decoder
    from swarmd.training.serving.loading import ChosenModel, choose_checkpoint, choose_directory, load_chosen

    given: dict[str, Any] = {"device": device, "dtype": dtype, "threads": threads}
    options = {name: value for name, value in given.items() if value}
    training = msgspec.structs.replace(TrainingConfig(), **options)
    if not place.is_dir():
        chosen = ChosenModel(msgspec.structs.replace(training, model=directory))
    elif is_model:
        chosen = choose_directory(place, training)
    else:
        node = locate_node(place)
        if node.config is not None:
            training = msgspec.structs.replace(load_config(node.config).training, **options)
        chosen = choose_checkpoint(NodeDirectory(node.data).checkpoints, training)
    return Decoder(load_chosen(chosen))


def name_model(directory: str) -> str:
    """A model's name: the last part of its directory or id."""
    return Path(directory).expanduser().resolve().name


class Drawing(NamedTuple):
    """Sampling settings."""

    temperature: float
    tokens_max: int
    seed: int | None


def chat(
    directory: ModelPlace,
    ask: Annotated[
        str | None, typer.Option("--ask", metavar="QUESTION", help="Answer this one question, and end.")
    ] = None,
    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="What stands before the conversation.")] = "",
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 takes the likeliest tokens.")] = 0.7,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens of an answer, at most.")] = 512,
    seed: Annotated[int | None, typer.Option("--seed", help="The same seed draws the same answers.")] = None,
    device: ModelDevice = None,
    dtype: ModelDtype = None,
    threads: Threads = 0,
) -> None:
    """Chat with a model, or a node's newest checkpoint.

    /reset forgets the conversation, /quit ends, and Ctrl-C cuts an answer short. A model without a chat template goes
    on with the text as it stands.
    """
    if ask is not None and not ask.strip():
        raise ConfigError("--ask is blank", "Write the question after it, in quotes")
    decoder = load_decoder(directory, device, dtype, threads)
    conversation = Conversation(decoder, system, Drawing(temperature, tokens, seed))
    if ask is not None:
        conversation.answer(ask)
        return
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # lines can then be edited
        policy = decoder.policy
        typer.echo(
            f"{name_model(directory)} on {policy.device}, {policy.precision.description}. {RESET} forgets, {QUIT} ends",
            err=True,
        )
    for line in _read_lines("> " if is_terminal else ""):
        if line == QUIT:
            return
        if line == RESET:
            conversation.reset()
        elif line:
            try:
                conversation.answer(line)
            except ConversationTooLong as error:
                typer.echo(f"{error.message}. {error.fix}", err=True)
            except KeyboardInterrupt:  # before the first token
                typer.echo()


def _read_lines(prompt: str) -> Iterator[str]:
    """Lines of standard input, until it ends."""
    with contextlib.suppress(EOFError):
        while True:
            yield input(prompt).strip()
    if prompt:
        typer.echo()


class ConversationTooLong(ConfigError):
    """The conversation exceeds the model's context."""


class Conversation:
    """The messages so far, and the model that answers. Raises ConversationTooLong, ModelUnfit, GenerationFailed."""

    def __init__(self, decoder: "Decoder", system: str, drawing: Drawing) -> None:
        self._decoder = decoder
        self._drawing = drawing
        self._begin = [Message("system", system, trusted=True)] if system else []
        self._messages = list(self._begin)

    def reset(self) -> None:
        """Forget all messages except the system message."""
        self._messages = list(self._begin)

    def answer(self, text: str) -> None:
        """Print the answer to a message as it is generated. Ctrl-C stops it, and the part so far stays in the
        conversation."""
        from swarmd.training.serving.decoder import GenerationRequest
        from swarmd.training.serving.loading import encode_chat

        decoder, drawing = self._decoder, self._drawing
        messages = [*self._messages, Message("user", text, trusted=True)]
        prompt = encode_chat(decoder.policy, messages)
        room = decoder.context - len(prompt)
        if room < 1:
            raise ConversationTooLong(
                f"the conversation has {len(prompt)} tokens, and the model reads {decoder.context}",
                f"{RESET} begins another",
            )
        (completion,) = decoder.submit(
            GenerationRequest(
                prompt,
                min(drawing.tokens_max, room),
                temperature=drawing.temperature,
                seed=drawing.seed,
                stop_ids=frozenset(decoder.policy.stop_ids),
                reads_text=True,
            )
        )
        shown = 0
        try:
            while not completion.finish:
                decoder.step()
                typer.echo(completion.text[shown:], nl=False)
                sys.stdout.flush()
                shown = len(completion.text)
        except KeyboardInterrupt:
            completion.cancelled = True
            decoder.step()  # removes it from the batch
        typer.echo()
        if completion.failure and not completion.cancelled:
            raise GenerationFailed(f"no answer could be drawn: {completion.failure}", "Try a shorter conversation")
        if completion.finish == "length":
            typer.echo(f"(cut after {len(completion.tokens)} tokens)", err=True)
        self._messages = [*messages, Message("assistant", completion.text, trusted=True)]
