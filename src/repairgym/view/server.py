"""Serving the application on a socket.

Reads a folder of runs; serves pages until it is interrupted. Invariants: what other machines can reach asks for a
token; a port that is taken is an error before anything is said to be served.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

import uvicorn

from repairgym.errors import InputError
from repairgym.view.app import create_app
from repairgym.view.guard import is_loopback

_ANY = ("", "0.0.0.0", "::")
_MIN_TOKEN_CHARS = 16


def serve(root: Path, *, host: str, port: int, token: str, tell: Callable[[str], None]) -> None:
    """Serve the runs below ``root`` until Ctrl-C.

    Args:
        root: A run folder or a folder that holds some.
        host: Address to bind to.
        port: Port to bind to; 0 chooses a free one.
        token: What a browser must show; empty: made up where other machines reach the server, else none.
        tell: Takes the address of the first page once the port is ours.

    Raises:
        InputError: ``root`` is no folder, the address cannot be bound to, or the token is short.
    """
    if token and len(token) < _MIN_TOKEN_CHARS:
        raise InputError(f"got a token of {len(token)} characters, expected {_MIN_TOKEN_CHARS} or more")
    if not token and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    is_any_host = host in _ANY
    app = create_app(root, hosts=() if is_any_host else (host.lower(),), token=token, is_any_host=is_any_host)
    with _bind(host, port) as bound:
        name = socket.gethostname() if is_any_host else host
        shown = f"[{name}]" if ":" in name else name
        tell(f"http://{shown}:{bound.getsockname()[1]}/" + (f"?{urlencode({'token': token})}" if token else ""))
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
        # uvicorn stops in order at Ctrl-C, then raises it again; to look and leave is no interrupted run.
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[bound])


def _bind(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"cannot listen on {host}:{port} ({error}); choose another port with --port, 0 takes a free one"
        ) from error
