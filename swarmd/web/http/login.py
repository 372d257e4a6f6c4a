"""Coming in with a token: a header for programs, a cookie for browsers. No token is ever in a URL."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections import OrderedDict, deque
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response

from swarmd.http_server import bears_token
from swarmd.web.http.answers import BadRequest, refusal
from swarmd.web.http.bodies import read_body
from swarmd.web.http.origins import asker

COOKIE = "swarmd_pass"  # of one host all servers have the same one: a browser's cookies know no ports
PASSES_MAX = 8  # in a cookie, of as many servers; of more, those are dropped that were given first
FORM_BYTES_MAX = 4096
NEXT_CHARACTERS_MAX = 512
FAILURES_MAX = 10  # wrong tokens of an address within FAILURES_S; more are refused, the right one never is
FAILURES_S = 60.0
ADDRESSES_MAX = 1024  # whose wrong tokens are counted; of more, those that failed longest ago are forgotten
_PASS = re.compile(r"\b[0-9a-f]{64}\b")


def admits(headers: Headers, token: str) -> bool:
    """Whether the request carries the token, or the cookie that it is exchanged for."""
    if not token or bears_token(headers.get("authorization", ""), token):
        return True
    wanted = pass_of(token).encode()
    return any(hmac.compare_digest(each.encode(), wanted) for each in _passes_in(headers))


def _passes_in(headers: Headers) -> list[str]:
    """Those in a request's cookie, the first given first."""
    return _PASS.findall(cookie_parser(headers.get("cookie", "")).get(COOKIE, ""))[-PASSES_MAX:]


def pass_of(token: str) -> str:
    """A pass, for a cookie: whoever has it comes in while the token is the same, and cannot tell the token from it."""
    return hmac.new(token.encode(), b"swarmd dashboard", hashlib.sha256).hexdigest()


class Login:
    """Takes the form of the login page."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()  # by address, the latest last

    async def enter(self, request: Request) -> Response:
        """POST /login. Raises BadRequest, TooLarge."""
        try:
            form = parse_qs((await read_body(request, FORM_BYTES_MAX)).decode("utf-8", "replace"), max_num_fields=8)
        except ValueError as error:
            raise BadRequest(f"the form cannot be read: {error}") from error
        onward = safe_path(form.get("next", ["/"])[0])
        given = form.get("token", [""])[0].strip()
        if self._token and not hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode()):
            if self._fails_often(asker.get(), time.monotonic()):
                return refusal(429, "too many wrong tokens; wait a minute", {"retry-after": str(int(FAILURES_S))})
            return RedirectResponse(f"/login?failed=1&next={quote(onward, safe='')}", 303)
        answer = RedirectResponse(onward, 303)
        if self._token:
            own = pass_of(self._token)
            others = [each for each in _passes_in(request.headers) if each != own]
            passes = ".".join([*others[1 - PASSES_MAX :], own])
            answer.set_cookie(COOKIE, passes, httponly=True, samesite="strict")
        return answer

    def _fails_often(self, origin: str, now: float) -> bool:
        """Count a wrong token; whether there were too many from there of late."""
        failures = self._failures.setdefault(origin, deque(maxlen=FAILURES_MAX))
        self._failures.move_to_end(origin)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)
        often = len(failures) == FAILURES_MAX and now - failures[0] < FAILURES_S
        failures.append(now)
        return often


def safe_path(text: str) -> str:
    """A path of this server; whatever else is given, its start page."""
    plain = text.isascii() and text.isprintable() and len(text) <= NEXT_CHARACTERS_MAX
    return text if plain and text.startswith("/") and not text.startswith(("//", "/\\")) else "/"
