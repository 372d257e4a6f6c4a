"""Every place where a node's configuration or environment holds a secret, and the secrets' texts as far as readable.

What is read here is only ever used to cover or to look for it; nothing is kept on disk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from swarmd.config import Config
from swarmd.errors import SwarmdError
from swarmd.observe.redaction import SECRET_CHARACTERS_MIN, address_secrets
from swarmd.private import Kind, locate_secret, read_secret

SECRET_BYTES_MAX = 64 * 1024
VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "TRACKIO_TOKEN")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")

_ANY = Kind("secret", SwarmdError, SECRET_BYTES_MAX)


class Slot(NamedTuple):
    """One place: `key` of the configuration, and the file or credential that it names."""

    key: str
    named: str
    addresses: bool = False  # the file holds URLs, a line each
    signs: bool = False  # it opens the account's key


def slots_of(config: Config) -> list[Slot]:
    """The files and credentials that a configuration names for its secrets."""
    found = [
        Slot("results.hub.token", config.results.hub.token),
        Slot("training.reference.token", config.training.reference.token),
        Slot("web.token", config.web.token),
        Slot("notify.telegram_token", config.notify.telegram_token),
        Slot("notify.webhook", _file_in(config.notify.webhook), addresses=True),
    ]
    if config.chain is not None:
        found.append(Slot("chain.proxy.token", config.chain.proxy.token))
        found.append(Slot("chain.passphrase", config.chain.passphrase, signs=True))
        found += [Slot("chain.rpc", _file_in(url), addresses=True) for url in config.chain.rpc]
    return [slot for slot in found if slot.named]


def known_secrets(
    config: Config, root: Path, environ: Mapping[str, str] = os.environ, signing: bool = False
) -> frozenset[str]:
    """The texts of all secrets that this process can read: of files, of URLs in the configuration, of the environment.

    What cannot be read is left out: whoever needs it says what is wrong with it.

    Args:
        root: the data directory, which files are relative to.
        signing: the account's passphrase, too, which a daemon has no business to read.
    """
    found = [text for slot in slots_of(config) if signing or not slot.signs for text in _texts(slot, root)]
    urls = (*(config.chain.rpc if config.chain is not None else ()), config.notify.webhook)
    found += [text for url in urls for text in address_secrets(url)]
    found += [environ[name] for name in VARIABLES if name in environ]
    found += [text for name in PROXIES for text in address_secrets(environ.get(name, ""))]
    return frozenset(text for text in found if len(text) >= SECRET_CHARACTERS_MIN)


def _texts(slot: Slot, root: Path) -> Iterator[str]:
    with contextlib.suppress(SwarmdError, OSError, UnicodeDecodeError):
        text = read_secret(locate_secret(slot.named, root, _ANY), _ANY).decode()
        for line in filter(None, map(str.strip, text.splitlines())):
            yield from address_secrets(line) if slot.addresses else (line,)


def _file_in(url: str) -> str:
    """What a URL's place names instead of holding it: file:PATH, credential:NAME."""
    if url.startswith("credential:"):
        return url
    return url.removeprefix("file:") if url.startswith("file:") and not url.startswith("file://") else ""
