"""Runs one stage of a build check in a sandbox that holds neither the check nor what it expects.

Reads a JSON object from standard input: the source of this file and of the check, and the front end that builds; or,
for the second stage, the metadata of a wheel. Leaves ``.dist/wheels`` (whatever the build back end wrote), or
``.dist/site`` (what that wheel requires). A build goes as one of two front ends does it: ``build`` (a virtual
environment, the wheel in the tree's ``dist``) or ``pip`` (an overlay on ``PYTHONPATH``, the metadata first). To a back
end they differ in the parent process, interpreter, arguments, variables and folders. A build that changes a module of
the tree fails.
"""

import email
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import types
import zipfile
from pathlib import Path
from typing import Any

COMMANDS = {"build": ("pyproject-build", "--wheel"), "pip": ("pip", "wheel", ".")}
LAUNCHERS = {
    "build": "import sys\nfrom build.__main__ import entrypoint\nsys.exit(entrypoint())\n",
    "pip": "import sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n",
}
"""The file that a front end's command names; what runs is hidden behind it."""
HOOKS_MODULE = {"build": "pyproject_hooks", "pip": "pip/_vendor/pyproject_hooks"}
SANDBOX_VARIABLES = {
    "PIP_NO_INDEX", "UV_OFFLINE", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE", "LC_ALL",
}  # fmt: skip
SITE_PACKAGES = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
HOOK = """
import importlib
import json
import os
import sys


def main():
    name, control = sys.argv[1:]  # which some back ends change
    with open(os.path.join(control, "input.json")) as file:
        arguments = json.load(file)["kwargs"].values()
    sys.path[:0] = filter(None, os.environ.get("_PYPROJECT_HOOKS_BACKEND_PATH", "").split(os.pathsep))
    module, _, attribute = os.environ["_PYPROJECT_HOOKS_BUILD_BACKEND"].partition(":")
    hooks = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        hooks = getattr(hooks, part)
    hook = getattr(hooks, name, None)
    told = {"unsupported": hook is None, "return_val": hook(*arguments) if hook else None}
    with open(os.path.join(control, "output.json"), "w") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main()
"""
OVERLAY = """
import site
import sys
import sysconfig

paths = sysconfig.get_paths()
sys.path = [path for path in sys.path if path not in (paths["purelib"], paths["platlib"])]
site.addsitedir({folder!r})
"""


def new_folder(prefix: str = "") -> Path:
    """A new folder with a name that no other build has."""
    return Path(tempfile.mkdtemp(prefix=prefix or secrets.token_hex(4)))


def become(front_end: str, program: str, order: str) -> None:
    """Run ``program`` in place of this process, with the command line of a front end; ``order`` is its input."""
    name, *arguments = COMMANDS[front_end]
    script = new_folder() / "bin" / name
    script.parent.mkdir()
    script.write_text(program)
    with tempfile.TemporaryFile() as file:
        file.write(order.encode())
        file.seek(0)
        os.dup2(file.fileno(), 0)
    variables = {name: value for name, value in os.environ.items() if name not in SANDBOX_VARIABLES}
    os.execve(sys.executable, [sys.executable, str(script), *arguments], variables)


class FrontEnd:
    """The build as one front end runs it; stands in the place of the check's ``subprocess``."""

    def __init__(self, name: str, check: types.ModuleType) -> None:
        self.name = name
        self.check = check
        self.tree = new_folder() / secrets.token_hex(4)
        program = new_folder() / SITE_PACKAGES / HOOKS_MODULE[name] / "_in_process" / "_in_process.py"
        program.parent.mkdir(parents=True)
        program.write_text(HOOK)
        self.program = program
        self.variables = dict(os.environ)
        self.python = sys.executable
        self.isolated = self._new_venv() if name == "build" else self._new_overlay()

    def _new_venv(self) -> Path:
        home = new_folder("build-env-")
        self.python = str(home / "bin" / "python")
        for folder in ("bin", SITE_PACKAGES):
            (home / folder).mkdir(parents=True)
        base = Path(sys.executable).resolve()
        Path(self.python).symlink_to(base)
        settings = f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n"
        (home / "pyvenv.cfg").write_text(settings)
        self.variables["PATH"] = f"{home / 'bin'}{os.pathsep}{self.variables['PATH']}"
        return home / SITE_PACKAGES

    def _new_overlay(self) -> Path:
        home = new_folder("pip-build-env-")
        folder = home / "overlay" / SITE_PACKAGES
        for path in (folder, home / "site", home / "overlay" / "bin"):
            path.mkdir(parents=True)
        (home / "site" / "sitecustomize.py").write_text(OVERLAY.format(folder=str(folder)))
        self.variables.update(
            {
                "PATH": f"{home / 'overlay' / 'bin'}{os.pathsep}{self.variables['PATH']}",
                "PYTHONNOUSERSITE": "1",
                "PYTHONPATH": str(home / "site"),
                "PIP_BUILD_TRACKER": str(new_folder("pip-build-tracker-")),
            }
        )
        return folder

    def make_site(self, requirements: list[str], place: Path) -> Path:
        """Install those distributions, and nothing else, where hooks find them."""
        for distribution in self.check.distributions_for(requirements).values():
            for top in {file.parts[0] for file in distribution.files or [] if ".." not in file.parts}:
                if top == "__pycache__":
                    continue
                source, target = Path(str(distribution.locate_file(top))), self.isolated / top
                if source.is_dir():
                    shutil.copytree(source, target, dirs_exist_ok=True)
                elif source.is_file():
                    shutil.copy2(source, target)
        return place

    def run(self, command: list[str], cwd: Path, **_: Any) -> "subprocess.CompletedProcess[str]":
        """Answer the check's call of a hook, with the tree in another place."""
        _site, paths, backend, hook, given = json.loads(command[-1])
        moved = (str(self.tree) + path.removeprefix(str(cwd)) for path in paths)
        self.variables["_PYPROJECT_HOOKS_BUILD_BACKEND"] = backend
        self.variables["_PYPROJECT_HOOKS_BACKEND_PATH"] = os.pathsep.join(moved)
        cwd.rename(self.tree)
        before = self._modules()
        try:
            if given:
                return (self._as_build if self.name == "build" else self._as_pip)(Path(given[0]))
            return self._call(hook, config_settings={} if self.name == "build" else None)[0]
        finally:
            after = self._modules()
            changed = [path for path, data in before.items() if after.get(path) != data]
            self.tree.rename(cwd)
            if changed:
                raise self.check.BuildError(f"the build changed {changed[0]} of the tree")

    def _modules(self) -> "dict[str, bytes]":
        return {str(path.relative_to(self.tree)): path.read_bytes() for path in self.tree.rglob("*.py")}

    def _as_build(self, place: Path) -> "subprocess.CompletedProcess[str]":
        folder = self.tree / "dist"
        folder.mkdir(exist_ok=True)
        before = {path.name for path in folder.iterdir()}
        done, _ = self._call("build_wheel", wheel_directory=str(folder), config_settings={}, metadata_directory=None)
        for path in folder.iterdir():
            if path.name not in before:
                shutil.move(path, place)
        return done

    def _as_pip(self, place: Path) -> "subprocess.CompletedProcess[str]":
        prepared, folder = new_folder("pip-modern-metadata-"), new_folder("pip-wheel-")
        hook = "prepare_metadata_for_build_wheel"
        done, told = self._call(hook, metadata_directory=str(prepared), config_settings=None)
        if done.returncode:
            return done
        # Without that hook the metadata comes from a wheel that is built there, and that wheel is kept.
        folder = prepared if told["unsupported"] else folder
        metadata = None if told["unsupported"] else prepared / str(told["return_val"])
        promised = (metadata / "METADATA").read_bytes() if metadata else b""
        given = str(metadata) if metadata else None
        done, told = self._call(
            "build_wheel", wheel_directory=str(folder), config_settings=None, metadata_directory=given
        )
        for path in folder.iterdir() if told else ():
            shutil.move(path, place)
        if metadata and told:
            with zipfile.ZipFile(place / str(told["return_val"])) as archive:
                if archive.read(f"{metadata.name}/METADATA") != promised:
                    raise self.check.BuildError("the metadata that an installer is given before are not the wheel's")
        return done

    def _call(self, hook: str, **arguments: Any) -> "tuple[subprocess.CompletedProcess[str], dict[str, Any]]":
        control = new_folder()
        (control / "input.json").write_text(json.dumps({"kwargs": arguments}))
        command = [self.python, str(self.program), hook, str(control)]
        done = subprocess.run(command, cwd=self.tree, capture_output=True, text=True, env=self.variables)
        told: dict[str, Any] = {}
        if not done.returncode:
            told = json.loads((control / "output.json").read_text())
            done.stdout = "\nmade " + json.dumps([] if told["unsupported"] else told["return_val"])
        return done, told


def main() -> None:
    """Run the stage."""
    text = sys.stdin.read()
    order = json.loads(text)
    if sys.argv[0] == "-c" and "front_end" in order:
        become(order["front_end"], order["program"], text)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    root = Path.cwd()
    check = types.ModuleType("check")
    check.__file__ = str(root / order["path"])
    exec(compile(order["text"], check.__file__, "exec"), check.__dict__)  # noqa: S102 - the shipped check
    shutil.rmtree(root / ".dist", ignore_errors=True)
    try:
        if "metadata" in order:
            required = email.message_from_string(order["metadata"]).get_all("Requires-Dist") or []
            (root / ".dist").mkdir()
            check.make_site([str(text) for text in required], root / ".dist" / "site")
        else:
            Path(sys.argv[0]).write_text(LAUNCHERS[order["front_end"]])
            front_end = FrontEnd(order["front_end"], check)
            vars(check).update(subprocess=front_end, make_site=front_end.make_site)
            wheel = check.build(root, new_folder())
            shutil.copytree(wheel.parent, root / ".dist" / "wheels", symlinks=True)
    except check.BuildError as error:
        sys.exit(str(error))


main()
