"""The invitations that this node's operator made, and withdrew: a list in its directory, which `swarmd swarm invite`
writes and the network worker reads."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from swarmd.bounds import DECODE_ERRORS, Real
from swarmd.dht.members.admission import Invitation
from swarmd.dht.members.withdrawal import ID_BYTES, WITHDRAWN_MAX, id_of, pack
from swarmd.errors import ConfigError
from swarmd.files import make_directory, read_start, write_durably
from swarmd.logger import get_logger

MADE_MAX = 4096  # listed; the oldest that are not withdrawn are forgotten
MADE_BYTES_MAX = 2 * 1024 * 1024

log = get_logger(__name__)


class IssuedInvitation(msgspec.Struct, frozen=True, omit_defaults=True):
    """An invitation that was made here, or one of another host that the creator withdrew here."""

    id: Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{{2 * ID_BYTES}}}$")]
    guest: str = ""  # peer id; empty where it was made elsewhere
    made_at: Real | None = None  # POSIX seconds
    until: Real = 0.0  # POSIX seconds; 0: without an end
    withdrawn_at: Real | None = None

    def is_over(self, now: float) -> bool:
        """Whether it came to its end by itself."""
        return bool(self.until) and self.until <= now


class OwnInvitations:
    """The list of them in a node's directory; read and written anew with each call.

    Args:
        path: its file; the network worker reads it while the node runs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[IssuedInvitation, ...]:
        """All of them, oldest first. Raises ConfigError where the file is there and is none."""
        try:
            return msgspec.json.decode(read_start(self._path, MADE_BYTES_MAX), type=tuple[IssuedInvitation, ...])
        except FileNotFoundError:
            return ()
        except (OSError, *DECODE_ERRORS) as error:
            fix = "Restore it, or remove it; what was withdrawn by it is then withdrawn no more"
            raise ConfigError(f"the list of invitations {self._path} cannot be read: {error}", fix) from error

    def note(self, encoded: bytes, guest: str, until: float, now: float) -> str:
        """Add one that has just been made. Returns its id. Raises ConfigError, NoSpaceLeft, LogWriteFailed."""
        found = id_of(msgspec.msgpack.decode(encoded, type=Invitation)).hex()
        before = next((each for each in self.read() if each.id == found), IssuedInvitation(found))
        self._write(msgspec.structs.replace(before, guest=guest, made_at=now, until=until), now)
        return found

    def withdraw(self, id_: bytes, everybodys: bool, now: float) -> IssuedInvitation:
        """Withdraw one.

        Args:
            id_: which.
            everybodys: whether this host may withdraw what others made, being the creator.

        Raises:
            ConfigError: it was not made here, or too many are withdrawn.
        """
        made = self.read()
        known = next((each for each in made if each.id == id_.hex()), None)
        if known is None and not everybodys:
            fix = "Ask the swarm's creator, who may withdraw any"
            raise ConfigError(f"the invitation {id_.hex()} was not made here", fix)
        if known is not None and known.withdrawn_at is not None:
            return known
        if len(_standing(made, now)) >= WITHDRAWN_MAX:
            fix = (
                "Those with an end (--days) make room then. Withdrawing the invitation of a guest voids all that this "
                "guest made; a list of members (dht.members) needs no invitations"
            )
            raise ConfigError(f"{WITHDRAWN_MAX} invitations are withdrawn already, as many as nodes carry", fix)
        withdrawn = msgspec.structs.replace(known or IssuedInvitation(id_.hex()), withdrawn_at=now)
        self._write(withdrawn, now)
        return withdrawn

    def packed(self, now: float) -> bytes:
        """Those withdrawn that have not come to their end, as they travel. Raises ConfigError."""
        return pack(bytes.fromhex(each.id) for each in _standing(self.read(), now)[:WITHDRAWN_MAX])

    def _write(self, changed: IssuedInvitation, now: float) -> None:
        made = [each for each in self.read() if each.id != changed.id and not each.is_over(now)] + [changed]
        spare = [each for each in made if each.withdrawn_at is None][: max(0, len(made) - MADE_MAX)]
        make_directory(self._path.parent)
        write_durably(
            self._path, msgspec.json.format(msgspec.json.encode([each for each in made if each not in spare]))
        )


def _standing(made: Iterable[IssuedInvitation], now: float) -> list[IssuedInvitation]:
    return [each for each in made if each.withdrawn_at is not None and not each.is_over(now)]


class OwnWithdrawals:
    """What this node's operator has withdrawn, for a node that runs: read anew where the file has changed.

    Args:
        made: the list.
    """

    def __init__(self, made: OwnInvitations) -> None:
        self._made = made
        self._last = b""

    def packed(self) -> bytes:
        """As they travel; the last that could be read where the list cannot be."""
        try:
            self._last = self._made.packed(time.time())
        except ConfigError as error:
            log.warning("%s", error.message)
        return self._last
