"""The subject: replays scripts over the code under test, without test framework, test files and expected values.

Reads frames from :mod:`.feeder` (the modules to import, then steps), makes one answer per step: the snapshot of its
result, and one of each object that the step may have changed. Scripts run in the process that imported the package;
where they run apart, each in a fork of it, which names the functions that ran at the end. Code under test may take this
process over: it then holds steps that were sent, never an answer.
"""

import collections
import importlib
import io
import json
import marshal
import operator
import os
import pickle
import struct
import sys
import types
from base64 import b64decode
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from .snapshot import OPAQUE, error_snapshot, snapshot

_MAX_AFTER_NODES = 300
_SCRIPT = "script"
_TRACED = "traced"
"""The frame at the start of a script, and of one that is asked for the functions that run."""
_CLEAN: Dict[str, Any] = {"op": "clean", "args": []}
# Bound now: the code under test can replace any of these names later.
_read, _write, _exit, _fork, _waitpid = os.read, os.write, os._exit, os.fork, os.waitpid
_loads, _dumps, _pack, _unpack = json.JSONDecoder().decode, json.JSONEncoder().encode, struct.pack, struct.unpack
_import, _getattr, _modules = importlib.import_module, getattr, sys.modules
_BaseException, _next, _iter, _bool, _setattr, _delattr = BaseException, next, iter, bool, setattr, delattr
_scandir, _unlink, _rmdir, _chdir, _OSError = os.scandir, os.unlink, os.rmdir, os.chdir, OSError
_ROOT, _ENVIRONMENT = os.getcwd(), dict(os.environ)
"""Working folder, and the environment as the import of the package leaves it."""


def _private_folders() -> Tuple[str, ...]:
    """Return the folders for temporary files that only this sandbox has."""
    if _ROOT == "/testbed":
        return "/tmp", "/dev/shm"
    folder = _ENVIRONMENT.get("TMPDIR", "")
    return (folder,) if folder and os.path.dirname(folder) == os.path.dirname(_ROOT) else ()


_FOLDERS = _private_folders()


# --- frames -----------------------------------------------------------------------------------------------------------


def receive(fd: int) -> Any:
    """Return the next frame; ``EOFError`` at the end."""
    return _loads(_exactly(fd, _unpack("=I", _exactly(fd, 4))[0]).decode())


def _exactly(fd: int, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = _read(fd, count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return parts


def send(fd: int, content: Any) -> None:
    """Send one frame."""
    data = _dumps(content).encode()
    data = _pack("=I", len(data)) + data
    while data:
        data = data[_write(fd, data) :]


# --- operands ---------------------------------------------------------------------------------------------------------


class Bare:
    """The receiver of a method that a test bound to its own test class."""


class _Unpickler(pickle.Unpickler):
    """An unpickler whose persistent ids are operands."""

    def __init__(self, data: bytes, resolve: Callable[[Any], Any], operands: List[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._resolve = resolve
        self._operands = operands

    def persistent_load(self, number: Any) -> Any:
        return self._resolve(self._operands[int(number)])


def _global(module: str, path: str) -> Any:
    value = _import(module)
    for name in path.split("."):
        value = _getattr(value, name)
    return value


class Player:
    """The player of one script; `handles` holds the results of its steps."""

    def __init__(self) -> None:
        self.handles: Dict[int, Any] = {}
        self._namespaces: Dict[str, Dict[str, Any]] = {}
        self._operands: Dict[str, Callable[..., Any]] = {
            "h": lambda number: self.handles[number],
            "l": lambda value: value,
            "b": b64decode,
            "y": lambda text: bytearray(b64decode(text)),
            "c": complex,
            "F": float,
            "E": lambda: Ellipsis,
            "N": lambda: NotImplemented,
            "t": lambda *parts: tuple(map(self.resolve, parts)),
            "L": lambda *parts: list(map(self.resolve, parts)),
            "s": lambda *parts: set(map(self.resolve, parts)),
            "f": lambda *parts: frozenset(map(self.resolve, parts)),
            "d": lambda *pairs: {self.resolve(key): self.resolve(value) for key, value in pairs},
            "x": lambda content: types.MappingProxyType(self.resolve(content)),
            "sl": lambda *parts: slice(*map(self.resolve, parts)),
            "r": range,
            "g": _global,
            "m": _import,
            "a": lambda owner, name: _getattr(self.resolve(owner), name),
            "p": lambda data, operands: _Unpickler(b64decode(data), self.resolve, operands).load(),
            "M": lambda function, owner: types.MethodType(self.resolve(function), self.resolve(owner)),
            "w": lambda kind, *parts: {"static": staticmethod, "class": classmethod, "property": property}[kind](
                *map(self.resolve, parts)
            ),
        }

    def resolve(self, operand: Any) -> Any:
        """Return the object that ``operand`` names."""
        return self._operands[operand[0]](*operand[1:])

    # --- steps ---

    def play(self, step: Dict[str, Any]) -> List[Any]:
        """Execute ``step``; return kind and snapshot of its result, and of each object that it may have changed."""
        try:
            value = self._execute(step)
            seen = (OPAQUE, "null") if step["op"] in _MAKERS else snapshot(value)
        except _BaseException as error:
            value = error
            seen = error_snapshot(error)
        if "to" in step:
            self.handles[step["to"]] = value
        return [seen[0], seen[1], [self._after(number) for number in step.get("after", ())]]

    def _after(self, number: int) -> Tuple[str, str]:
        try:
            return snapshot(self.handles.get(number), _MAX_AFTER_NODES, is_whole=True)
        except _BaseException as error:
            return error_snapshot(error)

    def _execute(self, step: Dict[str, Any]) -> Any:
        name = step["op"]
        if name in _MAKERS:
            return _getattr(self, "_make_" + name)(step)
        arguments = [self.resolve(operand) for operand in step["args"]]
        if name in ("call", "method"):
            keywords = {key: self.resolve(operand) for key, operand in step.get("kwargs", {}).items()}
            if name == "method":
                return _getattr(arguments[0], step["name"])(*arguments[1:], **keywords)
            return arguments[0](*arguments[1:], **keywords)
        return _OPERATIONS[name](step.get("name", ""), *arguments)

    # --- objects of the tests ---

    def _make_value(self, step: Dict[str, Any]) -> Any:
        return self.resolve(step["args"][0])

    def _make_cell(self, _: Dict[str, Any]) -> Any:
        return types.CellType()

    def _make_fill(self, step: Dict[str, Any]) -> Any:
        cell, content = map(self.resolve, step["args"])
        cell.cell_contents = content

    def _make_global(self, step: Dict[str, Any]) -> Any:
        namespace = self._namespaces.setdefault(step["module"], {"__name__": step["module"]})
        namespace[step["name"]] = self.resolve(step["args"][0])

    def _make_function(self, step: Dict[str, Any]) -> Any:
        defaults, keywords, content, *cells = map(self.resolve, step["args"])
        namespace = self._namespaces.setdefault(step["module"], {"__name__": step["module"]})
        function = types.FunctionType(
            marshal.loads(b64decode(step["code"])), namespace, step["name"], defaults or None, tuple(cells) or None
        )
        function.__kwdefaults__ = keywords or None
        function.__qualname__ = step["qualname"]
        function.__dict__.update(content)
        return function

    def _make_class(self, step: Dict[str, Any]) -> Any:
        kind, bases, content = map(self.resolve, step["args"])
        return kind(step["name"], bases, {**content, "__qualname__": step["qualname"], "__module__": step["module"]})

    def _make_clean(self, _: Dict[str, Any]) -> Any:
        """Take back what an earlier test left: files, the working folder and the environment."""
        _chdir(_ROOT)
        if dict(os.environ) != _ENVIRONMENT:
            os.environ.clear()
            os.environ.update(_ENVIRONMENT)
        for folder in _FOLDERS:
            _empty(folder)

    def _make_folder(self, step: Dict[str, Any]) -> Any:
        os.makedirs(self.resolve(step["args"][0]), exist_ok=True)

    def _make_file(self, step: Dict[str, Any]) -> Any:
        path, content = map(self.resolve, step["args"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)

    def _make_bare(self, step: Dict[str, Any]) -> Any:
        receiver = Bare()
        receiver.__dict__.update(self.resolve(step["args"][0]))
        return receiver


_MAKERS = frozenset({"value", "cell", "fill", "global", "function", "class", "bare", "clean", "file", "folder"})
_COMPARISONS: Dict[str, Callable[[Any, Any], Any]] = {
    **{name: _getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "is_", "is_not")},
    "in": lambda value, container: value in container,
    "not_in": lambda value, container: value not in container,
}


def _empty(folder: str) -> None:
    for entry in [*_scandir(folder)]:
        try:
            if entry.is_dir(follow_symlinks=False):
                _empty(entry.path)
                _rmdir(entry.path)
            else:
                _unlink(entry.path)
        except _OSError:
            continue  # not ours to remove, or gone


def _await(_: str, value: Any) -> Any:
    async def wait() -> Any:
        return await value

    return _global("asyncio", "run")(wait())


def _leave(_: str, manager: Any, error: Any = None) -> Any:
    if error is None:
        return type(manager).__exit__(manager, None, None, None)
    return type(manager).__exit__(manager, type(error), error, error.__traceback__)


def _new_class(name: str, bases: Any, body: Any, keywords: Any) -> Any:
    def fill(namespace: Any) -> None:
        for key, value in body.items():
            namespace[key] = value

    return types.new_class(name, bases, keywords, fill)


_Output = collections.namedtuple("_Output", "out err")


def _output(_: str) -> Any:
    """Return what was printed since the last call."""
    texts = []
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        buffer: Any = stream.buffer
        texts.append(buffer.getvalue().decode("utf-8", "replace"))
        buffer.seek(0)
        buffer.truncate()
    return _Output(*texts)


_OPERATIONS: Dict[str, Callable[..., Any]] = {
    "attribute": lambda name, owner: _getattr(owner, name),
    "item": lambda _, owner, key: owner[key],
    "set_attribute": lambda name, value, owner: _setattr(owner, name, value),
    "set_item": lambda _, value, owner, key: operator.setitem(owner, key, value),
    "delete_attribute": lambda name, owner: _delattr(owner, name),
    "delete_item": lambda _, owner, key: operator.delitem(owner, key),
    "binary": lambda name, left, right: _getattr(operator, name)(left, right),
    "unary": lambda name, value: _getattr(operator, name)(value),
    "compare": lambda name, left, right: _COMPARISONS[name](left, right),
    "truth": lambda _, value: _bool(value),
    "iterate": lambda _, value: _iter(value),
    "next": lambda _, value: _next(value),
    "enter": lambda _, manager: type(manager).__enter__(manager),
    "exit": _leave,
    "await": _await,
    "observe": lambda _, value: value,
    "new_class": _new_class,
    "output": _output,
}


# --- the process ------------------------------------------------------------------------------------------------------


_Function = Tuple[str, int]
"""File and first line of a function."""
_ANY = os.path.join(_ROOT, "*")
"""File of all functions."""
_UNSEEN = frozenset({
    "_thread.start_new_thread", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen",
    "sys.settrace",
})  # fmt: skip
"""Events of a script, functions of which nobody sees."""


def _serve(source: int, target: int, executed: Optional[Set[_Function]] = None) -> None:
    """Play the steps of scripts until there is no other one; then name the functions ``executed``."""
    steps: Any = _SCRIPT
    while steps is not None:
        if steps == _SCRIPT:
            player = Player()
            player.play(_CLEAN)
            for name in ("stdout", "stderr"):
                _setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True))
        else:
            send(target, [player.play(step) for step in steps])
        steps = receive(source)
    if executed is not None:
        root = _ROOT + os.sep
        send(target, sorted([path[len(root) :], line] for path, line in [*executed] if path.startswith(root)))


def _trace() -> Set[_Function]:
    """Return a set that grows by each function that runs from now on."""
    import threading

    executed: Set[_Function] = set()

    def note(frame: types.FrameType, _: str, __: Any) -> None:
        executed.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    threading.settrace(note)
    sys.settrace(note)
    return executed


def _end_trace() -> None:
    import threading

    threading.settrace(None)
    sys.settrace(None)


def _play_apart(source: int, target: int, executed: Optional[Set[_Function]]) -> None:
    """Play one script in a fork, without a trace where nobody asks for the functions ``executed``."""
    child = _fork()
    if child == 0:
        try:
            if executed is None:
                _end_trace()
            else:
                sys.addaudithook(lambda name, _: executed.add((_ANY, 0)) if name in _UNSEEN else None)
            _serve(source, target, executed)
        finally:
            _exit(0)
    _waitpid(child, 0)
    send(target, "ended")


def _with_default(function: Callable[[float], Any]) -> Callable[..., Any]:
    import time

    return lambda at=None: function(time.time() if at is None else at)


def shift_clock(shift_s: float) -> None:
    """Move every clock that code reads as the time of day by ``shift_s``."""
    import ctypes
    import datetime
    import gc
    import time

    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + shift_s
    time.time_ns = lambda: real_ns() + int(shift_s * 1e9)
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, _with_default(getattr(time, name)))
    original_format = time.strftime
    time.strftime = lambda text, at=None: original_format(text, time.localtime() if at is None else at)
    now, kind = datetime.datetime.now, datetime.datetime
    delta = datetime.timedelta(seconds=shift_s)
    replaced: Dict[Any, Dict[str, Callable[..., Any]]] = {
        kind: {
            "now": lambda cls, tz=None: cls.fromtimestamp((now() + delta).timestamp(), tz),
            "today": lambda cls: cls.fromtimestamp((now() + delta).timestamp()),
            "utcnow": lambda cls: cls.utcfromtimestamp((now() + delta).timestamp()),
        },
        datetime.date: {"today": lambda cls: cls.fromtimestamp(real() + shift_s)},
    }
    for base, functions in replaced.items():
        # The classes are static; only their dictionary can be changed.
        dictionary: Any = gc.get_referents(base.__dict__)[0]
        for name, function in functions.items():
            dictionary[name] = classmethod(function)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(base))


def main(source: int, target: int, config: Dict[str, Any]) -> None:
    """Import what scripts need, then play them."""
    for name in [name for name in _modules if name.startswith(__name__.partition(".")[0])]:
        del _modules[name]
    if config["clock_shift_s"]:
        shift_clock(config["clock_shift_s"])
    executed = _trace() if config["is_apart"] else None
    # As in a run of tests, the folder of the tree itself is not on the path.
    sys.path[:] = [*config["source_paths"], *(path for path in sys.path if path)]
    sys.argv[:] = ["pytest"]
    for name in config["imports"]:
        try:
            _import(name)
        except _BaseException:
            continue  # the steps that need it will see the same
    _ENVIRONMENT.clear()
    _ENVIRONMENT.update(os.environ)
    send(target, "ready")
    while True:
        frame = receive(source)
        if frame is None:
            return
        if executed is None:
            _serve(source, target)
        else:
            _play_apart(source, target, executed if frame == _TRACED else None)
