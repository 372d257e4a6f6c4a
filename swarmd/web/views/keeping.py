"""What a page has made of a log, kept beside it, so that the next page of this log reads only what came since."""

from __future__ import annotations

from pathlib import Path

from swarmd import __version__
from swarmd.bounds import DECODE_ERRORS
from swarmd.core.step import RULES
from swarmd.errors import NotFoundError, SwarmdError
from swarmd.eventlog.fold import oldest_base
from swarmd.eventlog.segment import Place, first_seq_of, segment_name
from swarmd.eventlog.summaries import Unfit, bookmark_place, read_bookmark, unread_bytes, write_bookmark
from swarmd.logger import get_logger
from swarmd.web.views.history import LogHistory
from swarmd.web.views.log_cursor import Cursor

KIND = "page"
FORM = 3  # grows when the same events give other bytes within one version of swarmd
VERSION = f"{__version__}, rules {RULES}, form {FORM}"
KEEP_EVENTS = 100_000  # read since it was kept last; reading them takes some ten seconds
KEEP_SHARE = 4  # and a fourth of all, until the log's end was reached: a long log is not kept over and over
WORTH_EVENTS = 20_000  # read when the log's end is reached for the first time; below, nothing is kept
SOON_BYTES = 4 * 1024 * 1024  # of a log are read within some two seconds

log = get_logger("swarmd.web")


class Keeping:
    """Keeps a history beside its log, and finds it again.

    Attributes:
        anew: why what was kept cannot be used, the end of a sentence; empty where it can, or where nothing was kept.
    """

    def __init__(self, history: LogHistory) -> None:
        self.anew = ""
        self._history = history
        self._kept_seq = 0
        self._refused = ""

    def resume(self) -> bool:
        """Have the history go on where it was kept. False where that cannot be: it is to begin anew then."""
        directory = self._history.directory
        self._kept_seq = 0
        try:
            found = read_bookmark(directory, KIND, VERSION)
            if found is None:
                return False
            place, parts = found
            self._history.resume(Cursor(place.seq, directory / segment_name(place.segment), place.offset), parts)
            if oldest_base(directory).seq < self._history.first:
                raise Unfit("the log begins earlier than it did")
        except (Unfit, *DECODE_ERRORS, ValueError, LookupError) as error:
            self.anew = error.message if isinstance(error, Unfit) else "it cannot be understood"
            log.warning("WARNING the log is read whole, for what was kept of it does not fit: %s", self.anew)
            return False
        self.anew, self._kept_seq = "", place.seq
        return True

    def keep_if_due(self, at_end: bool) -> None:
        """Keep it, where enough was read since the last time.

        Args:
            at_end: the log's end was reached before.
        """
        read = self._history.next_seq - self._kept_seq
        if read >= (KEEP_EVENTS if at_end else max(KEEP_EVENTS, self._history.next_seq // KEEP_SHARE)):
            self._keep()

    def keep_at_first_end(self) -> None:
        """Keep it, where reading up to here took a while."""
        if self._history.next_seq - self._kept_seq >= WORTH_EVENTS:
            self._keep()

    def _keep(self) -> None:
        self._kept_seq = self._history.next_seq
        try:
            kept = self._history.keep()
            if kept is None:
                return
            cursor, parts = kept
            place = Place(cursor.seq, first_seq_of(cursor.path), cursor.offset)
            write_bookmark(self._history.directory, KIND, VERSION, place, parts)
            self._refused = ""
        except (SwarmdError, OSError, OverflowError) as error:  # the latter: a sum beyond what msgpack can hold
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning("WARNING the next page of this log will take longer to read it: %s", error)


def is_kept(directory: Path) -> bool:
    """Whether all but little of a log seems to be kept."""
    try:
        place = bookmark_place(directory, KIND, VERSION)
        return place is not None and unread_bytes(directory, place) < SOON_BYTES
    except (OSError, NotFoundError):
        return False
