"""Access control and response headers of the viewer.

Reads requests; makes rejections and headers. Guarantees: every answer forbids scripts, styles and pictures of other
origins, framing and sniffing; an unknown host name is rejected (DNS rebinding); with a token, a request without it gets
nothing; a form is taken only from a page of this server (cross-site request forgery).
"""

import hashlib
import hmac
import ipaddress
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
RAW_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
"""Of answers with raw text of agents."""
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox allow-same-origin; frame-ancestors 'none'"
"""Of ``report.html``, which has an inline style and no script; its links to other pages keep the session."""
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
COOKIE = "repairgym_view"
_ALWAYS = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Return True for a host that only this machine reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware: host names, token, headers."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: tuple[str, ...] = (),
        token: str = "",
        is_any_host: bool = False,
        embed_from: tuple[str, ...] = (),
    ) -> None:
        """Wrap ``app`` of a server with the names ``hosts``, besides those of loopback; an empty token asks for none.

        With ``is_any_host`` the server is bound to all addresses: any host name is accepted, the token guards. Pages of
        the origins ``embed_from`` may show these in frames.
        """
        self._app = app
        self._hosts = {*_ALWAYS, *hosts}
        self._token = token
        self._is_any_host = is_any_host
        framers = " ".join(embed_from) or "'none'"
        self._policy = POLICY.replace("frame-ancestors 'none'", f"frame-ancestors {framers}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or reject one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        rejection = self._reject(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("content-security-policy", self._policy)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (rejection or self._app)(scope, receive, send_guarded)

    def _reject(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._is_any_host and _name_of(headers.get("host", "")) not in self._hosts:
            return PlainTextResponse(
                "this host name is not served here; use the address that `repairgym view` printed", 421
            )
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("this server takes GET, HEAD and its own forms", 405, {"allow": "GET, HEAD, POST"})
        if scope["method"] == "POST" and not _is_own_form(headers):
            return PlainTextResponse("a form is taken from a page of this server only", 403)
        return self._ask_for_token(scope, headers) if self._token else None

    def _ask_for_token(self, scope: Scope, headers: Headers) -> Response | None:
        if self._is_known(headers):
            return None
        items = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in items if name == "token"]
        if not given or not _equal(given[0], self._token):
            return PlainTextResponse("a token is required; use the full address that `repairgym view` printed", 401)
        rest = urlencode([(name, value) for name, value in items if name != "token"])
        # A path of two slashes would lead to another host.
        path = "/" + str(scope["path"]).lstrip("/\\")
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(COOKIE, _digest(self._token), httponly=True, samesite="strict")
        return answer

    def _is_known(self, headers: Headers) -> bool:
        cookies = cookie_parser(headers.get("cookie", ""))
        if _equal(cookies.get(COOKIE, ""), _digest(self._token)):
            return True
        return _equal(headers.get("authorization", ""), f"Bearer {self._token}")


def _is_own_form(headers: Headers) -> bool:
    """Return True for a form of a page of this origin; browsers add both headers, and no page can change them."""
    _, mark, origin = headers.get("origin", "").partition("://")
    is_form = headers.get("content-type", "").partition(";")[0].strip() == "application/x-www-form-urlencoded"
    is_own = bool(mark) and origin.lower() == headers.get("host", "").lower()
    return is_form and is_own and headers.get("sec-fetch-site", "same-origin") == "same-origin"


def _name_of(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def _digest(token: str) -> str:
    return hashlib.sha256(f"repairgym view {token}".encode()).hexdigest()


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())
