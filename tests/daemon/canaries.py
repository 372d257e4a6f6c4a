"""Canary secrets: one for every slot of a node, and a search that finds any of them in any spelling."""

import base64
import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import psutil
from eth_account import Account

from swarmd.animals import ANIMALS
from swarmd.chain.keystore import import_key
from swarmd.daemon.process import read_process_tag

END_CHARACTERS = 10  # of a canary, in front or at the back, that must not be seen either


def words(number: int) -> str:
    """A secret that looks like plain words, and like no other."""
    return f"{ANIMALS[number]}-walks-by-{ANIMALS[number + 20]}-home"


def opaque() -> str:
    """A secret that looks like one."""
    return f"C4n4ry{secrets.token_hex(12)}"


class Canaries:
    """Secrets in files below a directory, in URLs, and for the environment.

    Args:
        files: the directory, made here.
        receiver: port of a web server on this machine that gets the webhook.
    """

    def __init__(self, files: Path, receiver: int) -> None:
        self.files = files
        self.all: dict[str, str] = {}
        files.mkdir()
        for number, name in enumerate(("hub", "reference", "web", "proxy", "pass")):
            self._file(name, self._new(name, words(number)))
        self._file("telegram", f"tgram://{self._new('telegram', f'734251987:{opaque()}')}/1")
        self.url = f"https://me:{self._new('rpc password', words(6))}@rpc.example/v2/{self._new('rpc path', opaque())}"
        query = f"key={self._new('rpc file query', words(7))}"
        self._file("urls", f"wss://rpc.example/ws/{self._new('rpc file path', opaque())}?{query}")
        hook = f"{self._new('webhook path', opaque())}?token={self._new('webhook query', words(8))}"
        self.webhook = f"json://127.0.0.1:{receiver}/hook/{hook}"
        self._keystore()
        self.environment = {
            "HF_TOKEN": self._new("HF_TOKEN", f"hf_{secrets.token_hex(17)}"),
            "WANDB_API_KEY": self._new("WANDB_API_KEY", words(9)),
            "HTTP_PROXY": f"http://me:{self._new('HTTP_PROXY', words(10))}@127.0.0.1:9",
            "HTTPS_PROXY": f"http://me:{self._new('HTTPS_PROXY', opaque())}@127.0.0.1:9",
            "https_proxy": f"http://{self._new('https_proxy', words(11))}@127.0.0.1:9",
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{self._new('OTEL', opaque())}",
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def _new(self, name: str, text: str) -> str:
        assert text not in self.all.values()
        self.all[name] = text
        return text

    def _file(self, name: str, text: str) -> None:
        (self.files / name).write_text(f"{text}\n")
        (self.files / name).chmod(0o600)

    def _keystore(self) -> None:
        account = Account.create()
        key = self._new("private key", bytes(account.key).hex())
        import_key(self.files / "account", key, self.all["pass"], work=2)
        text = (self.files / "account").read_text()
        self.all["ciphertext"] = text.partition('"ciphertext":"')[2].partition('"')[0]
        assert len(self.all["ciphertext"]) == 64

    def know_identity(self, path: Path) -> None:
        """The node's own key, which it made itself."""
        seed = path.read_bytes()[4:36]
        self.all["identity"] = seed.hex()
        self.all["identity in base64"] = base64.b64encode(seed).decode()

    def config(self, listen: str = "127.0.0.1:0") -> str:
        """Tables that name them all, for the end of a configuration file."""
        at = self.files
        return f"""
[chain]
rpc = ["{self.url}", "file:{at}/urls"]
chain_id = 1
contract = "0x{"1" * 40}"
keystore = "{at}/account"
passphrase = "{at}/pass"
[chain.proxy]
token = "{at}/proxy"
[training.reference]
token = "{at}/reference"
[results.hub]
token = "{at}/hub"
[web]
listen = "{listen}"
token = "{at}/web"
[notify]
urls = ["{self.webhook}", "file:{at}/telegram"]
after_s = 0.1
"""

    def found_in(self, content: bytes, besides: Iterable[str] = ()) -> set[str]:
        """Names of the canaries that stand in it, in any spelling."""
        return {name for name, text in self.all.items() if name not in besides and seen(text, content)}


def seen(secret: str, content: bytes) -> bool:
    """Whether a secret or one end of it stands there plain, or all of it encoded."""
    return any(spelt in content for spelt in spellings(secret))


def spellings(secret: str) -> Iterator[bytes]:
    plain = secret.encode()
    yield from (plain[:END_CHARACTERS], plain[-END_CHARACTERS:], plain.hex().encode(), plain.hex().upper().encode())
    yield quote(secret, safe="").encode()
    for skipped, encode in itertools.product(range(3), (base64.b64encode, base64.urlsafe_b64encode)):
        encoded = encode(b"\0" * skipped + plain)
        yield encoded[4 if skipped else 0 : len(encoded) // 4 * 4 - 4]


def files_below(root: Path, but: Iterable[Path]) -> Iterator[Path]:
    """All regular files but the secrets' own."""
    left_out = set(but)
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and not left_out & {path, *path.parents}:
            yield path


def processes_of(root: Path) -> Mapping[int, str]:
    """Pids of a node's processes beside the daemon, and which each is: network, trainer, chain, web."""
    tagged = [each for each in psutil.process_iter() if read_process_tag(each).endswith(f"@{root}")]
    return {each.pid: "web" if "swarmd.web" in each.cmdline() else each.cmdline()[-1] for each in tagged}
