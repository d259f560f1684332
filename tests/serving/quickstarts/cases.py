"""The frame of the programs in this folder: runs the quick starts of one client, prints one line of JSON for each.

A program is run by the client's own interpreter, which has nothing of this project: ``python run_NAME.py model|agent``.
Functions ``model_...`` talk to a served model, ``agent_...`` to a script that calls tools. Address and key are in the
environment, under the names that the clients document.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any


def main(namespace: Mapping[str, Any]) -> None:
    """Run the functions of the kind that the command line names."""
    kind = sys.argv[1] + "_"
    for name, function in list(namespace.items()):
        if not name.startswith(kind) or getattr(function, "__module__", "") != "__main__":
            continue
        begun, error = time.monotonic(), ""
        try:
            result = function()
            if inspect.isawaitable(result):
                asyncio.run(_finish(result))
        except BaseException:
            error = traceback.format_exc(limit=-4)
        print(json.dumps({"name": name, "error": error, "seconds": round(time.monotonic() - begun, 2)}), flush=True)


async def _finish(result: Any) -> None:
    await result
