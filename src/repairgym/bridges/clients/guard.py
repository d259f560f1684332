"""Access control of servers that clients lead episodes on, for requests and WebSockets alike (`serving/access.py`)."""

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from repairgym.serving.access import check_access
from repairgym.serving.records import RequestError


class ClientGuard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, host: str, token: str = "") -> None:
        """Wrap ``app``, served on ``host``; an empty token asks for none."""
        self._app = app
        self._host = host
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on, or reject it."""
        try:
            if scope["type"] in ("http", "websocket"):
                check_access(Headers(scope=scope), self._host, self._token)
        except RequestError as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": str(error)})
            else:
                await JSONResponse({"error": str(error)}, error.status)(scope, receive, send)
            return
        await self._app(scope, receive, send)
