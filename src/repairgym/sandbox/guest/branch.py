"""The layers of one sandbox as its trusted process sees them: frozen on request, counted, compared.

Reads a :class:`~.lineage.Lineage` and a descriptor of the folder that its names are relative to, makes new folders in
the sandbox's own tmpfs. Invariant: a freeze that fails leaves the sandbox as it was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from typing import Any, Dict, List, Sequence, Tuple

from . import rootfs
from .copying import copy_tree
from .lineage import Lineage, layer_paths, used_bytes


class Branch:
    """Follows a sandbox's lineage."""

    def __init__(self, line: Lineage, scratch: str) -> None:
        """``scratch``: a path through a descriptor, because no other leads there any more."""
        self._line = line
        self._scratch = scratch

    def layers(self) -> List[str]:
        """Paths of the copy-on-write layers above the start, newest first."""
        return layer_paths(self._line, self._scratch)

    def freeze(self, _: Dict[str, Any], __: List[bytes]) -> Tuple[Dict[str, Any], Sequence[bytes]]:
        """Prepare what lies above the current upper, which must be mounted before anything runs again.

        Raises:
            OSError: no room for the copy of ``/tmp``.
        """
        frozen = self._line.freeze()
        names = [self._line.frozen_tmp, frozen.upper, frozen.work]
        paths = [f"{self._scratch}/{name}" for name in names]
        try:
            for path in paths:
                os.mkdir(path)
            copy_tree("/tmp", paths[0])
            os.chmod(paths[1], stat.S_IMODE(os.stat(rootfs.TESTBED).st_mode) | 0o700)
        except BaseException:
            for path in paths:
                with contextlib.suppress(OSError):
                    shutil.rmtree(path)
            raise
        self._line = frozen
        return {"lineage": frozen.describe(), "num_bytes": used_bytes(f"{self._scratch}/{frozen.depth}")}, ()
