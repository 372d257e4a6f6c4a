"""Reading a request's body, never more than is allowed."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from swarmd.web.http.answers import BadRequest, TooLarge


async def read_body(request: Request, bytes_max: int) -> bytes:
    """The whole body.

    Raises:
        TooLarge: it is longer, or says that it is.
        BadRequest: the client broke off.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and int(declared[:18]) > bytes_max:
        raise TooLarge(f"a body may have {bytes_max} bytes")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > bytes_max:
                raise TooLarge(f"a body may have {bytes_max} bytes")
    except ClientDisconnect as error:
        raise BadRequest("the body broke off") from error
    return bytes(body)
