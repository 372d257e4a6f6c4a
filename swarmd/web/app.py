"""The application: the table of addresses, the pages and the guard around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from swarmd.errors import SwarmdError
from swarmd.uvicorn_server import HttpRefusal
from swarmd.web import api, pages
from swarmd.web.http.answers import JsonAnswer, refusal, refusal_of
from swarmd.web.http.endpoints import Endpoint
from swarmd.web.http.guard import AccessRules, Login, RequestGuard
from swarmd.web.http.openapi import openapi
from swarmd.web.http.stream import Stream
from swarmd.web.http.work import Background, keep_up
from swarmd.web.shapes import PageSource
from swarmd.web.sources import SwarmSource
from swarmd.web.views.node import LogNode


def endpoints_of(
    swarm: SwarmSource, node: LogNode | None, stream: Stream, here: PageSource | None = None
) -> tuple[Endpoint, ...]:
    """All addresses of the interface, those of a node where there is one."""
    of_node = (*api.node_endpoints(node), *api.monitoring_endpoints(node)) if node is not None else ()
    return (
        api.here_endpoint(node, here),
        *api.swarm_endpoints(swarm),
        *of_node,
        api.stream_endpoint(stream),
    )


def make_app(
    swarm: SwarmSource,
    doors: AccessRules,
    node: LogNode | None = None,
    here: PageSource | None = None,
    background: Sequence[Background] = (),
) -> RequestGuard:
    """The application as a server runs it.

    Args:
        swarm: where the swarm page's figures come from.
        doors: who is let in.
        node: the node's log, where there is one; started and stopped with the application.
        here: what is shown, where there is no node.
        background: further tasks that run beside it, for example what sends notifications.
    """
    stream = Stream(swarm, node)
    endpoints = endpoints_of(swarm, node, stream, here)
    document = openapi(endpoints)

    async def serve_document(request: Request) -> Response:
        return JsonAnswer(document)

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        if node is not None:
            await node.start()
        tasks = [asyncio.ensure_future(keep_up(task)) for task in (stream.run, *background)]
        try:
            yield {}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if node is not None:
                await node.stop()

    routes = [
        *(endpoint.route() for endpoint in endpoints),
        Route("/api/openapi.json", serve_document),
        Route("/login", Login(doors.token).enter, methods=["POST"]),
        Route("/api", pages.refuse_unknown),
        Route("/api/{rest:path}", pages.refuse_unknown),
        Route("/static/{name:path}", pages.serve_static),
        Route("/{rest:path}", pages.serve_page),
    ]
    return RequestGuard(Starlette(routes=routes, lifespan=running, exception_handlers=REFUSALS), doors, stream.end)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, SwarmdError)
    return refusal_of(error)


async def _refuse_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpRefusal)
    return refusal(error.status, str(error))


async def _refuse_method(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, f"{error.detail}: {request.method}", dict(error.headers or {}))


async def _own_up(request: Request, error: Exception) -> Response:
    return refusal(500, "the server met an error that it does not know; its log has it")


REFUSALS = {SwarmdError: _refuse, HttpRefusal: _refuse_body, HTTPException: _refuse_method, Exception: _own_up}
