"""Write docs/CLI.md: what Typer says of every command, without what is the same for all of them.

Usage: cli_docs.py OUT
"""

import html
import re
import subprocess
import sys
from pathlib import Path

ORDER = "Arguments of a command come first, in their order, then its options."
PAYING = re.compile(r"(?:\* `--(?:rpc URL|account KEYSTORE|passphrase-file FILE|max-gwei <float>)`: .*\n){4}")


def shorten(text: str) -> str:
    """Drop indexes of commands, `--help`, headings of lists, usage, types of arguments, and repeated options."""
    text = re.sub(r"\*\*Commands\*\*:\n\n(?:\* .*\n)+\n?", "", text)
    text = re.sub(r"^\* `--help`: .*\n| *\[env var: SWARMD_INIT_\w+\]", "", text, flags=re.M)
    text = re.sub(r"^(\* `[^-].*)  \[required\]$", r"\1", text, flags=re.M)
    text = re.sub(r"env var: SWARMD_INIT_\w+; ", "", text).replace("<int range>", "N").replace("<float range>", "N")
    text = re.sub(r"\*\*(?:Usage|Options|Arguments)\*\*:\n\n", "", text)
    text = re.sub(r"```console\n\$ .*\n```\n\n", "", text)
    text = re.sub(r"^(\* `[^-`]+?) <[^`]*>`", r"\1`", text, flags=re.M)
    text = text.replace("\n\n## ", f"\n\n{ORDER}\n\n## ", 1)
    first = PAYING.search(text)
    if first is None:
        raise SystemExit("no command has the options of payments; adapt PAYING")
    same = "* Endpoint, account and gas price as in `swarmd swarm new`.\n"
    repeated = text[first.end() :].replace(first.group(), same)
    return re.sub(r"\n{3,}", "\n\n", html.unescape(text[: first.end()] + repeated)).rstrip("\n") + "\n"


def main() -> None:
    """Let Typer write the page, and shorten it in place."""
    out = Path(sys.argv[1])
    typer = [sys.executable, "-m", "typer", "swarmd.cli", "utils", "docs", "--name", "swarmd", "--output", str(out)]
    subprocess.run(typer, check=True)
    out.write_text(shorten(out.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
