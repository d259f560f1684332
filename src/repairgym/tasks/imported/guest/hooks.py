"""Calls of a project's build back end (PEP 517, PEP 660), in the folder of the project.

Reads an order as JSON on standard input: ``stage`` (``requires`` or ``build``), ``kind`` (``editable`` or ``wheel``),
``backend``, ``backend_path`` and ``output``. Makes ``OUTPUT/result.json`` and, in the stage ``build``, a wheel in
``OUTPUT``: the requirements of the hook, the name of the wheel, and the folder of the sources where an old back end
can make no editable wheel (then the wheel holds the metadata only). Parses on Python 3.6 and later.
"""

import glob
import importlib
import json
import os
import subprocess
import sys
import zipfile
from typing import Any, Dict


def load(order: Dict[str, Any]) -> Any:
    """Return the object of the back end."""
    sys.path[:0] = [os.path.abspath(path) for path in order["backend_path"]]
    name, _, attributes = order["backend"].partition(":")
    backend = importlib.import_module(name)  # type: Any
    for attribute in attributes.split(".") if attributes else ():
        backend = getattr(backend, attribute)
    return backend


def requires(backend: Any, order: Dict[str, Any]) -> Dict[str, Any]:
    """Return what the hook needs installed."""
    names = ["get_requires_for_build_" + order["kind"], "get_requires_for_build_wheel"]
    hooks = [getattr(backend, name) for name in names if hasattr(backend, name)]
    return {"requires": list(hooks[0]()) if hooks else []}


def build(backend: Any, order: Dict[str, Any]) -> Dict[str, Any]:
    """Build the wheel and return its name."""
    output = os.path.abspath(order["output"])
    if order["kind"] == "wheel":
        return {"wheel": backend.build_wheel(output)}
    if hasattr(backend, "build_editable"):
        # Paths instead of import hooks: then a command in another folder imports the same files.
        return {"wheel": backend.build_editable(output, {"editable_mode": "compat"})}
    return develop(backend, output)


def develop(backend: Any, output: str) -> Dict[str, Any]:
    """Do what ``setup.py develop`` does: extensions in place, metadata, and the folder of the sources."""
    before = set(glob.glob("**/*.egg-info", recursive=True))
    info = backend.prepare_metadata_for_build_wheel(output)
    subprocess.check_call([sys.executable, "setup.py", "-q", "build_ext", "--inplace"])
    new = sorted(set(glob.glob("**/*.egg-info", recursive=True)) - before) or sorted(before)
    wheel = info[: -len(".dist-info")] + "-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(output, wheel), "w") as archive:
        for name in sorted(os.listdir(os.path.join(output, info))):
            archive.write(os.path.join(output, info, name), info + "/" + name)
        archive.writestr(info + "/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(info + "/RECORD", "")
    return {"wheel": wheel, "sources": os.path.dirname(new[0]) if new else ""}


def main() -> None:
    """Do the order on standard input."""
    order = json.load(sys.stdin)
    os.makedirs(order["output"], exist_ok=True)
    sys.argv[:] = ["setup.py"]
    result = {"requires": requires, "build": build}[order["stage"]](load(order), order)
    with open(os.path.join(order["output"], "result.json"), "w") as file:
        json.dump(result, file)


main()
