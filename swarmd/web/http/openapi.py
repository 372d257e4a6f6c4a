"""The OpenAPI document, made from the table of addresses and the shapes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from swarmd import __version__
from swarmd.observe.status import Health
from swarmd.web.http.endpoints import Endpoint, Parameter
from swarmd.web.shapes import Failure

REFUSALS = {
    400: "a parameter or the body makes no sense",
    401: "a token is needed",
    403: "the request comes from another site's page",
    404: "there is no such thing, or not any more",
    405: "not with this method",
    408: "the request came too slowly",
    413: "the body is too large",
    414: "the address is too long",
    421: "the Host header names another server",
    429: "too many wrong tokens",
    503: "it cannot be told now",
}
ALWAYS = (400, 401, 403, 404, 414, 421, 503)


def openapi(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The document, OpenAPI 3.1."""
    endpoints = tuple(endpoints)
    types = [*(each.answer for each in endpoints if not _is_text(each)), Failure]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    failure = schemas[-1]
    by_endpoint = iter(schemas[:-1])
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        schema = None if _is_text(endpoint) else next(by_endpoint)
        paths[endpoint.path] = {"get": _operation(endpoint, schema, failure)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "swarmd",
            "version": __version__,
            "description": "What a node of a swarm knows and does. Nothing here changes anything.",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "swarmd_pass"},
            },
        },
        "security": [{}, {"bearer": []}, {"cookie": []}],
    }


def _is_text(endpoint: Endpoint) -> bool:
    return isinstance(endpoint.answer, str)


def _operation(endpoint: Endpoint, schema: Any, failure: Any) -> dict[str, Any]:
    content_type = endpoint.answer if schema is None else "application/json"
    good = {"description": endpoint.summary, "content": {content_type: {"schema": schema or {"type": "string"}}}}
    responses: dict[str, Any] = {"200": good}
    for status in sorted({*ALWAYS, *endpoint.refusals}):
        shapes = [schema, failure] if status == 503 and endpoint.answer is Health else [failure]
        content = {"application/json": {"schema": {"anyOf": shapes} if len(shapes) > 1 else failure}}
        responses[str(status)] = {"description": REFUSALS[status], "content": content}
    operation: dict[str, Any] = {
        "operationId": endpoint.path.strip("/").replace("/", "_").replace("{", "").replace("}", "").replace("-", "_"),
        "summary": endpoint.summary,
        "responses": responses,
    }
    if endpoint.parameters:
        operation["parameters"] = [_parameter(parameter) for parameter in endpoint.parameters]
    return operation


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = msgspec.json.schema(parameter.type)
    if parameter.default is not None:
        schema["default"] = parameter.default
    if parameter.many:
        schema = {"type": "array", "items": schema, "maxItems": parameter.many}
    return {
        "name": parameter.name,
        "in": "path" if parameter.in_path else "query",
        "required": parameter.required,
        "description": parameter.summary,
        "schema": schema,
    }


def main(path: Path) -> None:
    """Write the document of a node's server: `python -m swarmd.web.http.openapi docs/openapi.json`."""
    from swarmd.paths import NodeDirectory
    from swarmd.web.app import endpoints_of
    from swarmd.web.http.stream import Stream
    from swarmd.web.views.node import LogNode

    node = LogNode(NodeDirectory(Path()))
    document = openapi(endpoints_of(node, node, Stream(node, node)))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
