"""Access control of servers that clients lead episodes on, for requests and WebSockets alike.

Guarantees: on loopback no other host name leads here and no page of another site may connect; with a token, a client
without it gets nothing.
"""

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from repairgym.config.models import LOOPBACK


class ClientGuard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, host: str, token: str = "") -> None:
        """Wrap ``app``, served on ``host``; an empty token asks for none."""
        self._app = app
        self._names = {*LOOPBACK, host}
        self._is_local = host in LOOPBACK
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on, or reject it."""
        status, reason = self._rejection(Headers(scope=scope)) if scope["type"] in ("http", "websocket") else (0, "")
        if not status:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            await JSONResponse({"error": reason}, status)(scope, receive, send)

    def _rejection(self, headers: Headers) -> tuple[int, str]:
        host = urlsplit(f"//{headers.get('host', '')}").hostname
        if self._is_local and host not in self._names:
            return 421, "this host name is not served here; use the address that was printed"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).hostname not in {*self._names, host}:
            return 403, "pages of other sites may not ask this server"
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if self._token and not hmac.compare_digest(given.encode(), self._token.encode()):
            return 401, "wrong or missing token; send it as 'Authorization: Bearer TOKEN' or as x-api-key"
        return 0, ""
