"""The trusted process of a sandbox whose commands run in a container image.

Guarantees: a command sees the image and may change its own copy; tests, and programs of ours, run in the image as it
was pulled, on an interpreter that no code of the sandbox can replace. They start without the image's variables, because
those may name code in ``/testbed``, and always cold: this process has another interpreter.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, Optional

from . import image_root, process, rootfs, server, spawner, wire

_FOLDER = os.path.dirname(rootfs.IMAGE_GUEST)
_OWN = f"import sys; sys.path[0] = {_FOLDER!r}; from {__package__}.runners import in_image; "
_TESTS_BOOT = _OWN + "in_image.main(*sys.argv[1:])"
_CHECK_BOOT = _OWN + "sys.exit(in_image.missing())"
_PROGRAM_BOOT = _OWN + "sys.path += in_image.package_folders(); del sys.path[0]\n"
_CHECK_TIMEOUT_S = 60.0
_NUM_CHECK_BYTES = 4000
_NO_PYTEST = 3


class ImageServer(server.Server):
    """A server of one sandbox over an image."""

    _runner_status: Optional[int] = None
    """Exit status of the check of the image's runners; None: not asked yet."""

    def _start(self, boot: str, *arguments: str) -> int:
        """Become the image's Python in its root for tests."""
        place = self._place
        python = image_root.find_python(place.environment["PATH"])
        if python is None:
            os.write(2, b"there is no python3 on the PATH of the image outside of /testbed")
            return 127
        return server.execute([python, "-S", "-c", boot, *arguments], place.testbed, spawner.GUEST_ENVIRONMENT)

    def _python(self, header: Dict[str, Any], _: List[bytes]) -> server.Answer:
        boot = _PROGRAM_BOOT + header["text"]

        def body() -> int:
            os.close(wire.RECORD_FD)
            return self._start(boot)

        late: Callable[[], bytes] = lambda: wire.receive(self._connection)[1][0]  # noqa: E731
        return self._command(body, late, header["timeout_s"], rootfs.TESTS_ROOT)

    def _tests(self, header: Dict[str, Any], blobs: List[bytes]) -> server.Answer:
        self._check_runner(header["runner"])
        variables = json.dumps(self._place.environment)

        def body() -> int:
            os.dup2(1, 2)
            return self._start(_TESTS_BOOT, self._place.testbed, variables)

        return self._run_tests(body, blobs[0], header, rootfs.TESTS_ROOT)

    def _check_runner(self, runner: str) -> None:
        """Raise `UnusableError` when the image cannot run ``runner``; code of the sandbox cannot change the answer."""
        if self._runner_status is None:
            limits = [_NUM_CHECK_BYTES, _NUM_CHECK_BYTES, 0]
            boot: Callable[[], int] = lambda: self._start(_CHECK_BOOT)  # noqa: E731
            done = self._run(boot, b"", _CHECK_TIMEOUT_S, limits, self._limits, rootfs.TESTS_ROOT)
            status = _status(done)
            if status not in (0, _NO_PYTEST):
                said = done.stderr.value().decode(errors="replace").strip().splitlines() or ["no message"]
                raise wire.UnusableError(f"signed runners need Python 3.8 or newer in the image: {said[-1]}")
            self._runner_status = status
        if self._runner_status == _NO_PYTEST and runner == "pytest":
            raise wire.UnusableError("the Python of the image has no pytest; install it there, or use another runner")


def _status(done: process.Finished) -> int:
    return os.WEXITSTATUS(done.status) if done.status is not None and os.WIFEXITED(done.status) else -1
