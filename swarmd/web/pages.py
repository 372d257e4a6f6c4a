"""The page's files: `/`, `/node`, `/login` and `/static/NAME`; nothing else of the disk can be reached."""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from swarmd.web.http.answers import refusal

STATIC = Path(__file__).parent / "static"
PAGES = {"/node": "node.html", "/login": "login.html"}
START = "swarm.html"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}


def page_of(path: str) -> str:
    """The page that an address shows; any that is not known shows the start page."""
    return PAGES.get(path.rstrip("/"), START)


async def serve_page(request: Request) -> Response:
    """A page, never stored."""
    return serve_file(request, page_of(request.url.path), "no-store")


async def serve_static(request: Request) -> Response:
    """A file of the page; browsers ask each time whether it changed."""
    return serve_file(request, request.path_params["name"], "no-cache")


async def refuse_unknown(request: Request) -> Response:
    """An address of the interface that there is not."""
    return refusal(404, "there is no such address; /api/openapi.json lists those that there are")


def serve_file(request: Request, name: str, caching: str) -> Response:
    """One of the files that are there."""
    known = {str(path.relative_to(STATIC)): path for path in STATIC.rglob("*") if path.is_file()}
    if name not in known or known[name].suffix not in TYPES:
        return refusal(404, "there is no such file")
    body = known[name].read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"cache-control": caching, "etag": tag, "content-type": TYPES[known[name].suffix]}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers)
