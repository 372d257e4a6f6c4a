"""The ways that a note takes out: an HTTP POST, a Telegram message, a program's stdin.

Each try ends within a named time; none raises anything but NotifyFailed, whose message shows no secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from swarmd.config import NotifyConfig
from swarmd.errors import ConfigError, NotifyFailed
from swarmd.http_client import read_start
from swarmd.observe.logging.redaction import address_secrets, redact_text
from swarmd.secret_files import CREDENTIAL, SecretKind, locate_secret, read_secret
from swarmd.web.notifications.health_changes import HealthMessage

TRY_S = 10.0  # longest HTTP exchange
COMMAND_S = 30.0  # longest run of a program; then its group is killed
LINGER_S = 2.0  # for a killed program's last words
BACKOFF_S = (2.0, 8.0)  # before the second and the third try; there is no fourth
ANSWER_BYTES_MAX = 4096  # of what a server or a program says when it fails
ANSWER_CHARACTERS_SHOWN = 200
SECRET_BYTES_MAX = 4096
TELEGRAM = "https://api.telegram.org"
FILE = "file:"
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "XDG_RUNTIME_DIR")  # to a program
AGAIN = (408, 425, 429, 500, 502, 503, 504)  # answers after which another try may do better

SECRET = SecretKind("notification secret", ConfigError, SECRET_BYTES_MAX, "Write it there on one line, mode 0600")

Pause = Callable[[float], Awaitable[None]]


class NotificationSender(Protocol):
    """One way out; `name` is one of `swarmd.observe.telemetry.labels.SENDERS`."""

    name: str

    async def send(self, note: HealthMessage) -> None:
        """Send it, with further tries where they may help. Raises NotifyFailed."""


def senders_of(config: NotifyConfig, root: Path) -> list[NotificationSender]:
    """The ways that are configured.

    Args:
        root: the data directory, which files are relative to.

    Raises:
        ConfigError: a secret cannot be read, or what is named is no URL.
    """
    senders: list[NotificationSender] = []
    if config.webhook:
        senders.append(WebhookSender(_address_of(config.webhook, root)))
    if config.telegram_token or config.telegram_chat:
        if not (config.telegram_token and config.telegram_chat):
            raise ConfigError("notify.telegram_token and notify.telegram_chat belong together", "Set both or none")
        senders.append(TelegramSender(_secret_in(config.telegram_token, root), config.telegram_chat))
    if config.command:
        senders.append(ProgramSender(config.command))
    return senders


def _address_of(named: str, root: Path) -> str:
    if named.startswith(CREDENTIAL):
        return _secret_in(named, root)
    return _secret_in(named.removeprefix(FILE), root) if named.startswith(FILE) else named


def _secret_in(named: str, root: Path) -> str:
    secret = locate_secret(named, root, SECRET)
    text = read_secret(secret, SECRET).decode("utf-8", "replace").strip()
    if not text or not text.isprintable():
        raise ConfigError(f"there is no notification secret in {secret.path}", "It holds one line")
    return text


class HttpSender:
    """POSTs JSON, three times where that may help.

    Args:
        address: the URL; secret.
        name: of the sender.
        pause: waits between tries.
    """

    def __init__(self, address: str, name: str, pause: Pause = asyncio.sleep, try_s: float = TRY_S) -> None:
        self._address = address
        self._shown = _shown(address, name)
        self._pause = pause
        self._try_s = try_s
        self._secrets = sorted(address_secrets(address), key=len, reverse=True)

    async def post(self, body: Mapping[str, Any]) -> None:
        """Raises NotifyFailed when no try was taken."""
        for wait_s in (*BACKOFF_S, None):
            failure = await self._try(body)
            if failure is None:
                return
            words, again = failure
            if wait_s is None or not again:
                raise NotifyFailed(f"{self._shown} did not take the message: {self._clean(words)}")
            await self._pause(wait_s)

    async def _try(self, body: Mapping[str, Any]) -> tuple[str, bool] | None:
        """None when it was taken, else why not, and whether another try may help."""
        limit = aiohttp.ClientTimeout(total=self._try_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=limit, trust_env=True) as session,
                session.post(self._address, json=body, allow_redirects=False) as answer,
            ):
                if 200 <= answer.status < 300:
                    return None
                said = (await read_start(answer.content, ANSWER_BYTES_MAX)).decode("utf-8", "replace")
                return f"status {answer.status}: {said}", answer.status in AGAIN
        except TimeoutError:
            return f"no answer within {self._try_s:g} s", True
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}", True

    def _clean(self, words: str) -> str:
        for secret in (self._address, *self._secrets):
            words = words.replace(secret, "[redacted]")
        return " ".join(redact_text(words).split())[:ANSWER_CHARACTERS_SHOWN]


def _shown(address: str, name: str) -> str:
    """Scheme, host and port, which is all of the address that may be shown. Raises ConfigError where it is none."""
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"notify.{name} is no URL", "Write it as https://host/path; a file of it as file:PATH")
    return f"{name} {parts.scheme}://{parts.hostname}{port}"


class WebhookSender:
    """A JSON POST: the note's fields, and `text` and `content` with all of it in words, as chat services want it."""

    name = "webhook"

    def __init__(self, address: str, pause: Pause = asyncio.sleep, try_s: float = TRY_S) -> None:
        self._poster = HttpSender(address, self.name, pause, try_s)

    async def send(self, note: HealthMessage) -> None:
        fields = {name: getattr(note, name) for name in note.__struct_fields__}
        await self._poster.post({"text": note.text, "content": note.text, **fields})


class TelegramSender:
    """A message of a bot.

    Args:
        token: the bot's.
        chat: id of the chat.
        base: where the service is.
    """

    name = "telegram"

    def __init__(
        self, token: str, chat: str, base: str = TELEGRAM, pause: Pause = asyncio.sleep, try_s: float = TRY_S
    ) -> None:
        self._chat = chat
        self._poster = HttpSender(f"{base}/bot{token}/sendMessage", self.name, pause, try_s)

    async def send(self, note: HealthMessage) -> None:
        await self._poster.post({"chat_id": self._chat, "text": note.text, "disable_web_page_preview": True})


class ProgramSender:
    """Runs a program with the message on its stdin; it may take `COMMAND_S`, and is not run again when it fails.

    Its environment holds nothing of ours but SWARMD_NOTE_LAYER and SWARMD_NOTE_STATE ("well" or "unwell").
    """

    name = "command"

    def __init__(self, argv: Sequence[str], run_s: float = COMMAND_S) -> None:
        self._argv = tuple(argv)
        self._run_s = run_s

    async def send(self, note: HealthMessage) -> None:
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment |= {"SWARMD_NOTE_LAYER": note.layer, "SWARMD_NOTE_STATE": "well" if note.well else "unwell"}
        async with _own_pipe() as (stream, descriptor):
            process = await self._start(environment, descriptor)
            said = asyncio.ensure_future(_tail(stream))
            try:
                status = await self._see_through(process, note)
            finally:  # whatever it started goes with it, and may hold the pipe open until then
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
                await asyncio.wait([said], timeout=LINGER_S)
                said.cancel()
        if status:
            words = said.result() if said.done() and not said.cancelled() else ""
            raise NotifyFailed(f"the program {self._argv[0]} ended with status {status}: {redact_text(words)}")

    async def _start(self, environment: Mapping[str, str], stderr: int) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise NotifyFailed(f"the program {self._argv[0]} cannot be run: {error}") from None
        finally:
            os.close(stderr)  # the program has its own

    async def _see_through(self, process: asyncio.subprocess.Process, note: HealthMessage) -> int:
        assert process.stdin is not None
        try:
            async with asyncio.timeout(self._run_s):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    process.stdin.write(note.text.encode() + b"\n")
                    await process.stdin.drain()
                process.stdin.close()
                return await process.wait()
        except TimeoutError:
            raise NotifyFailed(f"the program {self._argv[0]} took more than {self._run_s:g} s, killed") from None


@asynccontextmanager
async def _own_pipe() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """A pipe for stderr that asyncio does not count as the process's: it would wait for all who hold it open."""
    reading, writing = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb", 0)
    )
    try:
        yield stream, writing
    finally:
        transport.close()


async def _tail(stream: asyncio.StreamReader) -> str:
    """The last words of a stream; all of it is read."""
    kept = b""
    while chunk := await stream.read(ANSWER_BYTES_MAX):
        kept = (kept + chunk)[-ANSWER_BYTES_MAX:]
    return " ".join(kept.decode("utf-8", "replace").split())[-ANSWER_CHARACTERS_SHOWN:]
