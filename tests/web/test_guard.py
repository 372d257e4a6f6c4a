"""Who is let in: host names, other sites' pages, tokens, methods; and what every answer carries."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from swarmd.cli.dashboard import PageOptions, serve_log
from swarmd.errors import ConfigError
from swarmd.http_server import Address, client_network_of
from swarmd.web.guard import (
    COOKIE,
    FAILURES_MAX,
    PASSES_MAX,
    AccessRules,
    RequestGuard,
    derive_cookie_pass,
    safe_path,
)
from swarmd.web.shapes import PageSource
from tests.web.serving import FOLLOWER, LOCAL, Served, copy_of, served, until

TOKEN = "correct-horse-battery-staple"
OPEN = ("/", "/node", "/login", "/static/swarm.js")
CLOSED = (
    "/api/v1/swarm/gossip",
    "/api/v1/here",
    "/api/v1/node/events",
    "/api/v1/stream",
    "/api/openapi.json",
    "/api/nothing",
    "/metrics",
    "/livez",
    "/readyz",
)


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Without a token."""
    with served(
        copy_of(FOLLOWER, tmp_path_factory.mktemp("open")), AccessRules(LOCAL, hosts=("dash.example",))
    ) as server:
        yield server


@pytest.fixture(scope="module")
def closed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With a token."""
    with served(copy_of(FOLLOWER, tmp_path_factory.mktemp("closed")), AccessRules(LOCAL, TOKEN)) as server:
        yield server


# --- host names ---


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:18800", 200),
        ("[::1]:8800", 200),
        ("dash.example", 200),
        ("dash.example.:443", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("192.0.2.7", 421),
        ("localhost:80:80", 421),
        ("localhost@evil.example", 421),
        ("", 421),
    ],
)
def test_only_names_of_this_server_are_answered(open_server: Served, host: str, status: int) -> None:
    for path in ("/", "/api/v1/here", "/metrics"):
        answer = open_server.get(path, headers={"Host": host})
        assert answer.status_code == status
        if status != 200:
            assert answer.json()["detail"] == "misdirected"


def test_a_request_without_a_host_or_with_two_is_refused(open_server: Served) -> None:
    for head in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n"):
        with open_server.socket() as connection:
            connection.sendall(head)
            assert connection.recv(65536).split()[1] in (b"421", b"400")


@pytest.mark.parametrize(
    ("local", "named", "known"),
    [
        ("192.0.2.7", "192.0.2.7:8800", True),
        ("::ffff:192.0.2.7", "192.0.2.7:8800", True),
        ("2001:db8::7", "[2001:db8::7]:8800", True),
        ("::ffff:192.0.2.7", "192.0.2.8:8800", False),
    ],
)
def test_a_server_goes_by_the_address_that_it_was_reached_at(local: str, named: str, known: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    guard = RequestGuard(app, AccessRules(Address("::", 8800), TOKEN))
    head = {"method": "GET", "path": "/", "query_string": b"", "headers": [(b"host", named.encode())]}
    denied = guard._find_refusal({"type": "http", "server": (local, 8800), **head}, Headers({"host": named}))
    assert (denied is None) is known


# --- other sites' pages ---


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "http://[", "file://"])
def test_what_a_page_of_another_origin_sends_is_refused(open_server: Served, origin: str) -> None:
    for path in ("/", "/api/v1/here"):
        assert open_server.get(path, headers={"Origin": origin}).status_code == 403
    assert open_server.client.post("/login", data={"next": "/"}, headers={"Origin": origin}).status_code == 403


def test_the_own_page_may_ask(open_server: Served) -> None:
    own = {"Origin": open_server.url, "Sec-Fetch-Site": "same-origin"}
    assert open_server.client.post("/login", data={"next": "/"}, headers=own).status_code == 303
    proxied = {"Origin": "https://dash.example", "Host": "dash.example"}
    assert open_server.client.post("/login", data={"next": "/"}, headers=proxied).status_code == 303
    elsewhere = {"Origin": "https://dash.example:8443", "Host": "dash.example:8443"}
    assert open_server.client.post("/login", data={"next": "/"}, headers=elsewhere).status_code == 303
    portless = elsewhere | {"Host": "dash.example"}  # as docs/DASHBOARD.md says of nginx's $host
    assert open_server.client.post("/login", data={"next": "/"}, headers=portless).status_code == 403


def test_a_link_may_lead_here_and_nothing_else_of_another_site(open_server: Served) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert open_server.get("/", headers=link).status_code == 200
    assert open_server.get("/api/v1/here", headers=link).status_code == 403
    image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    assert open_server.get("/api/v1/here", headers=image).status_code == 403
    assert open_server.get("/", headers=link | {"Sec-Fetch-Dest": "iframe"}).status_code == 403


# --- methods and headers ---


def test_nothing_but_get_head_and_post_is_there(open_server: Served) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
        answer = open_server.client.request(method, "/api/v1/here")
        assert answer.status_code == 405 and "GET" in answer.headers["allow"]
    for path in ("/", "/api/v1/here", "/metrics", "/api/v1/swarm/gossip", "/static/swarm.js"):
        assert open_server.client.post(path, json=[]).status_code == 405


def test_asking_changes_nothing_of_the_node(tmp_path: Path) -> None:
    """Every address, by GET: not a byte of the data directory is another one afterwards."""

    def contents() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    copy_of(FOLLOWER, tmp_path)
    before = contents()
    with served(tmp_path) as server:
        for path in server.json("/api/openapi.json")["paths"]:
            if path != "/api/v1/stream":
                server.get(path.replace("{seq}", "3"))
    assert contents() == before


def test_every_answer_has_the_headers_that_keep_a_browser_safe(open_server: Served, closed_server: Served) -> None:
    answers = [open_server.get(path) for path in ("/", "/api/v1/here", "/static/swarm.js", "/api/nothing", "/metrics")]
    answers += [open_server.get("/", headers={"Host": "evil"}), closed_server.get("/api/v1/here")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        for rule in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'self'"):
            assert rule in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers and "date" in answer.headers
    assert open_server.get("/api/v1/here").headers["cache-control"] == "no-store"


def test_a_fault_of_the_disk_is_answered_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> PageSource:
        raise OSError(errno.EIO, "Input/output error")

    with served(copy_of(FOLLOWER, tmp_path)) as server:
        node: Any = server.node
        node.describe_source = fail
        answer = server.get("/api/v1/here")
        assert answer.status_code == 500 and "its log has it" in answer.json()["message"]
        until(lambda: "a request failed: GET '/api/v1/here'" in caplog.text and "Input/output error" in caplog.text)


@pytest.mark.parametrize(
    "name", ["../shapes.py", "..%2fshapes.py", "%2e%2e/shapes.py", "nothing.js", "", "/etc/passwd"]
)
def test_no_other_file_can_be_reached(open_server: Served, name: str) -> None:
    with open_server.socket() as connection:
        connection.sendall(f"GET /static/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert connection.recv(65536).split()[1] == b"404"


# --- tokens ---


@pytest.mark.parametrize("path", CLOSED)
def test_without_the_token_nothing_of_the_node_is_told(closed_server: Served, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Cookie": f"{COOKIE}={TOKEN}"}):
        answer = closed_server.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    assert closed_server.get(f"{path}?token={TOKEN}").status_code == 401


def test_with_the_token_everything_is(closed_server: Served) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    for path in CLOSED:
        if path != "/api/v1/stream":
            assert closed_server.get(path, headers=bearer).status_code in (200, 404, 503)
    assert closed_server.get("/api/v1/here", headers=bearer).json()["node"] is True


@pytest.mark.parametrize("path", OPEN)
def test_pages_are_served_to_anybody(closed_server: Served, path: str) -> None:
    assert closed_server.get(path).status_code == 200


def test_a_browser_comes_in_by_the_form(tmp_path: Path) -> None:
    with served(copy_of(FOLLOWER, tmp_path), AccessRules(LOCAL, TOKEN)) as server:
        wrong = server.client.post("/login", data={"token": "wrong", "next": "/node"})
        assert (wrong.status_code, wrong.headers["location"]) == (303, "/login?failed=1&next=%2Fnode")
        assert "set-cookie" not in wrong.headers
        right = server.client.post("/login", data={"token": TOKEN, "next": "/node"}, headers={"Origin": server.url})
        assert (right.status_code, right.headers["location"]) == (303, "/node")
        cookie = right.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and TOKEN not in cookie
        assert server.get("/api/v1/here").status_code == 200  # the client keeps the cookie


def test_a_browser_stays_with_all_servers_of_a_host(tmp_path: Path) -> None:
    """Cookies know no ports."""
    tokens = [f"{number} of a few long tokens" for number in range(PASSES_MAX + 2)]
    with contextlib.ExitStack() as stack:
        node = copy_of(FOLLOWER, tmp_path)
        first, second = (stack.enter_context(served(node, AccessRules(LOCAL, token))) for token in tokens[:2])
        browser = httpx.Client(trust_env=False)
        stack.callback(browser.close)
        for server, token in zip((first, second), tokens, strict=False):
            assert browser.post(f"{server.url}/login", data={"token": token}).status_code == 303
        assert [browser.get(f"{each.url}/api/v1/here").status_code for each in (first, second)] == [200, 200]
        assert browser.post(f"{first.url}/login", data={"token": tokens[0]}).status_code == 303
        assert browser.get(f"{second.url}/api/v1/here").status_code == 200
        many = ".".join(map(derive_cookie_pass, tokens))
        kept = httpx.get(f"{first.url}/api/v1/here", headers={"Cookie": f"{COOKIE}={many}"}, trust_env=False)
        assert kept.status_code == 401, "given first of too many"
        browser.cookies = httpx.Cookies({COOKIE: many})
        renewed = browser.post(f"{first.url}/login", data={"token": tokens[0]}).headers["set-cookie"]
        assert renewed.partition(";")[0] == f"{COOKIE}={'.'.join(map(derive_cookie_pass, [*tokens[3:], tokens[0]]))}"


def test_wrong_tokens_are_counted_and_the_right_one_comes_in_all_the_same(tmp_path: Path) -> None:
    with served(copy_of(FOLLOWER, tmp_path), AccessRules(LOCAL, TOKEN)) as server:
        for _ in range(FAILURES_MAX):
            assert server.client.post("/login", data={"token": "wrong"}).status_code == 303
        answer = server.client.post("/login", data={"token": "wrong"})
        assert answer.status_code == 429 and "retry-after" in answer.headers
        elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(base_url=server.url, transport=elsewhere, trust_env=False) as other:
            assert other.post("/login", data={"token": "wrong"}).status_code == 303, "counted by address"
        right = server.client.post("/login", data={"token": TOKEN, "next": "/node"})
        assert (right.status_code, right.headers["location"]) == (303, "/node")
        assert server.get("/api/v1/here").status_code == 200


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a socket", "a socket"),
        ("", "?"),
    ],
)
def test_addresses_of_one_network_count_together(host: str, origin: str) -> None:
    assert client_network_of(host) == origin


@pytest.mark.parametrize(
    "given", ["//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nb", "", "x", "/" + "a" * 600, "/é"]
)
def test_after_the_form_one_stays_on_this_server(given: str) -> None:
    assert safe_path(given) == "/"
    assert safe_path("/node?seq=3#x") == "/node?seq=3#x"


def test_an_address_of_others_needs_a_token(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="asks for no token"):
        serve_log(copy_of(FOLLOWER, tmp_path), PageOptions("0.0.0.0:0"))
