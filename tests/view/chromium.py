"""A headless Chromium, driven by its debugging pipe: no driver program and no library."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)
KEY_CODES = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "F1": 112}


class RefusedError(Exception):
    """The browser could not do what it was asked."""


class Chromium:
    """One page of one browser. Everything it asks for, logs or alerts is kept."""

    def __init__(self, folder: Path) -> None:
        """Start it with its profile in ``folder``."""
        commands, answers = os.pipe(), os.pipe()
        theirs = commands[0], answers[1]
        # The browser wants its pipe as 3 and 4, which may be somebody's here.
        high = [fcntl.fcntl(one, fcntl.F_DUPFD, place) for one, place in zip(theirs, (20, 21), strict=True)]
        script = f'exec "$@" 3<&{high[0]} 4>&{high[1]}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, "bash", PROGRAM, *OPTIONS, f"--user-data-dir={folder}"],
            pass_fds=high,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for one in (*theirs, *high):
            os.close(one)
        self._to, self._from = os.fdopen(commands[1], "wb", 0), os.fdopen(answers[0], "rb")
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._to.close()  # it ends when its pipe does
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._from.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RefusedError(answer["error"]["message"])
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        parts = bytearray()
        while (byte := self._from.read(1)) != b"\0":
            assert byte, "the browser is gone"
            parts += byte
        answer: dict[str, Any] = json.loads(parts)
        if "method" in answer:
            self._events.append(answer)
        return answer

    def open(self, address: str) -> None:
        """Go to a page and wait until it is there."""
        self._events.clear()
        answer = self.call("Page.navigate", url=address)
        if answer.get("errorText"):
            raise RefusedError(f"{address}: {answer['errorText']}")
        loader = answer["loaderId"]
        while not any(
            one["name"] == "load" and one["loaderId"] == loader for one in self.events("Page.lifecycleEvent")
        ):
            self._receive()

    def events(self, method: str) -> list[dict[str, Any]]:
        """What happened since the page was opened."""
        return [event["params"] for event in self._events if event["method"] == method]

    def complaints(self) -> list[str]:
        """Errors, refusals of the policy, and dialogs."""
        logged = [one["entry"]["text"] for one in self.events("Log.entryAdded")]
        thrown = [one["exceptionDetails"]["text"] for one in self.events("Runtime.exceptionThrown")]
        return logged + thrown + [one["message"] for one in self.events("Page.javascriptDialogOpening")]

    def requests(self) -> list[str]:
        """Addresses that were asked for."""
        return [one["request"]["url"] for one in self.events("Network.requestWillBeSent")]

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            text = "\r" if key == "Enter" else key if len(key) == 1 else ""
            code = {"windowsVirtualKeyCode": KEY_CODES[key]} if key in KEY_CODES else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, **code)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def wait_for(self, expression: str, tries: int = 100) -> None:
        """Wait until an expression is true."""
        for _ in range(tries):
            with suppress(RefusedError):  # the page was just being exchanged
                if self.evaluate(f"Boolean({expression})"):
                    return
            time.sleep(0.1)
        raise AssertionError(f"never true: {expression}")

    def wait_for_frame(self, address: str, expression: str, tries: int = 300) -> Any:
        """Wait for a frame of another origin in the page; return the value of an expression there, once it has one."""
        main = self._session
        for _ in range(tries):
            targets = self.call("Target.getTargets")["targetInfos"]
            frames = [one for one in targets if one["type"] == "iframe" and one["url"].startswith(address)]
            if frames:
                self._session = self.call("Target.attachToTarget", targetId=frames[0]["targetId"], flatten=True)[
                    "sessionId"
                ]
                try:
                    if value := self.evaluate(expression):
                        return value
                finally:
                    self._session = main
            time.sleep(0.1)
        raise AssertionError(f"no frame of {address} has {expression}")

    def screenshot(self, path: Path, size: tuple[int, int] = (1280, 860)) -> None:
        """A picture of the top of the page."""
        self.resize(size)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def resize(self, size: tuple[int, int]) -> None:
        """Size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False
        )

    def media(self, scheme: str = "light", kind: str = "screen") -> None:
        """Colours and medium that the page is shown in."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)
