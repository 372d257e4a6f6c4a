"""Where pip is set to look, in uv's words. Standard library only, as environment.py."""

from __future__ import annotations

import re

UV_NAMES = {  # pip's setting: uv's variable
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}


def read_pip_config(said: str) -> dict[str, str]:
    """The settings that `pip config list` printed. A variable wins over a file."""
    found: dict[str, str] = {}
    for line in sorted(said.splitlines(), key=lambda line: line.startswith(":env:")):
        if match := re.fullmatch(r"(?:global|install|:env:)\.([\w-]+)='(.*)'", line):
            found[match[1]] = match[2].replace("\\n", " ").strip()
    return found


def uv_settings(pip_config: str) -> dict[str, str]:
    """Where pip is set to look, in uv's variables."""
    found = read_pip_config(pip_config)
    settings = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # all indexes are one, as to pip; the lock says which version
    settings |= {uv: found[pip] for pip, uv in UV_NAMES.items() if pip in found}
    if "find-links" in found:
        settings["UV_FIND_LINKS"] = ",".join(found["find-links"].split())
    return settings


def uv_options(pip_config: str) -> list[str]:
    """What uv has no variable for."""
    asked = read_pip_config(pip_config).get("no-index", "").lower()
    return ["--no-index"] if asked in ("1", "true", "yes", "on") else []
