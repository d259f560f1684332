"""Access control of servers.

Guarantees: on loopback no other host name leads here, and no page of another site may ask (DNS rebinding); with a
token, a client without it gets nothing.
"""

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from repairgym.config.models import LOOPBACK
from repairgym.serving.records import RequestError


def check_access(headers: Headers, host: str, token: str) -> None:
    """Raise `RequestError` for who may not connect to a server on ``host``; an empty ``token`` is asked of nobody."""
    names = {*LOOPBACK, host}
    named = urlsplit(f"//{headers.get('host', '')}").hostname
    if host in LOOPBACK and named not in names:
        raise RequestError("this host name is not served here; use the address that was printed", status=421)
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).hostname not in {*names, named}:
        raise RequestError("pages of other sites may not ask this server", status=403, code="foreign_origin")
    given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
    if token and not hmac.compare_digest(given.encode(), token.encode()):
        raise RequestError(
            "wrong or missing token; send it as 'Authorization: Bearer TOKEN' or as x-api-key", status=401
        )
