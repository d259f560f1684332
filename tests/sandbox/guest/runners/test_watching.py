"""What code of a tree reaches for: under whatever name it does, and not what the library does for itself."""

import json
import subprocess
import sys

import pytest

GET = "import string\ndef get(a, b):\n    return string.Formatter().get_field('0.' + b, (a,), {})[0]\n"
ERROR = "try:\n    raise KeyError\nexcept KeyError as error:\n    place = error.__traceback__\n"
HIDDEN = {
    "a field of a format": (GET + ERROR + "get(place, 'tb_' + 'frame')\n", "tb_frame"),
    "an attribute getter in C": (
        "import _operator\n" + ERROR + "_operator.attrgetter('tb_frame')(place)\n",
        "tb_frame",
    ),
    "members of an object": ("import inspect\n" + ERROR + "dict(inspect.getmembers(place))['tb_frame']\n", "tb_frame"),
    "a copied attribute": (
        "import functools\ndef f(): pass\n" + ERROR + "functools.update_wrapper(f, place, ('tb_frame',), ())\n",
        "tb_frame",
    ),
    "a generator": ("def one():\n    yield 1\n" + GET + "get(one(), 'gi_frame')\n", "gi_frame"),
    "an unpickler": (
        "import io, pickle\npickle.Unpickler(io.BytesIO()).find_class('gc', 'get_objects')()\n",
        "gc.get_objects",
    ),
    "an annotation": (
        "import typing\nclass A: x: \"__import__('gc').get_referrers({}) or int\"\n" + "typing.get_type_hints(A)\n",
        "gc.get_referrers",
    ),
    "a stream that is no stream": (
        (
            "import contextlib\nclass S(contextlib.redirect_stdout):\n    _stream = '_getframe'\n"
            "s = S(None)\ns.__enter__()\nfind = s._old_targets[-1]\ns.__exit__(None, None, None)\nfind()\n"
        ),
        "sys._getframe",
    ),
    "a walk along a traceback": ("import traceback\n" + ERROR + "next(traceback.walk_tb(place))\n", "tb_frame"),
    "a function of the logging package": ("import logging\nlogging.currentframe()\n", "sys._getframe"),
    "a function that the library calls": (
        "import contextlib, gc\ncontextlib.contextmanager(gc.get_objects)().gen\n",
        "gc.get_objects",
    ),
    "the stack of a task": (
        "import asyncio\nasync def f(): asyncio.current_task().get_stack()\nasyncio.run(f())\n",
        "cr_frame",
    ),
    "a debugger": ("import bdb\nb = bdb.Bdb()\nb.reset()\nb.set_trace()\nb.set_continue()\n", "sys.settrace"),
    "a stack for a debugger": ("import bdb\n" + ERROR + "bdb.Bdb().get_stack(None, place)\n", "tb_frame"),
    "a worker of a pool": (
        "import concurrent.futures, gc\nconcurrent.futures.ThreadPoolExecutor(1).submit(gc.get_objects).result()\n",
        "gc.get_objects",
    ),
    "another pool": (
        "import multiprocessing.pool, gc\nmultiprocessing.pool.ThreadPool(1).apply(gc.get_objects)\n",
        "gc.get_objects",
    ),
    "a handler of a signal": ("import signal\nsignal.signal(16, print)\n", "signal.signal"),
    "the defaults of what reports": ("import _signal\n_signal.signal.__defaults__[0](16, print)\n", "signal.signal"),
    "a second module of signals": (
        "import importlib.machinery, sys\ndel sys.modules['_signal']\n__import__('_signal').signal(16, print)\n",
        "signal.signal",
    ),
    "tracing": ("import sys\nvars(sys)['settrace'](None)\n", "sys.settrace"),
}
HONEST = (
    "import collections, dataclasses, enum, logging, typing, traceback, warnings, functools, contextlib, io, pickle\n"
    "P = collections.namedtuple('P', 'x')\nN = typing.NamedTuple('N', [('x', int)])\nE = enum.Enum('E', 'a b')\n"
    "D = dataclasses.make_dataclass('D', ['x'])\nT = typing.TypeVar('T')\nlogging.getLogger('a').warning('text')\n"
    "warnings.warn('text', stacklevel=2)\n" + ERROR + "text = traceback.format_exc()\ntraceback.print_tb(place)\n"
    "pickle.loads(pickle.dumps(P))\n@functools.wraps(print)\ndef f(): pass\n"
    "import asyncio\nasync def g(): await asyncio.sleep(0)\nasyncio.run(g())\n"
    "with contextlib.suppress(KeyError), contextlib.redirect_stdout(io.StringIO()):\n    raise KeyError\n"
)


def reached_for(tmp_path, code, name="m.py"):
    """Return what a module of a tree reached for."""
    (tmp_path / name).write_text(code)
    main = (
        "import json, sys\nfrom repairgym.sandbox.guest.runners.watching import watch\n"
        "found = []\nwatch(sys.argv[1], found.append)\nsys.path.insert(0, sys.argv[1])\n"
        f"__import__({name[:-3]!r})\nprint('\\n' + json.dumps(found))\n"
    )
    done = subprocess.run([sys.executable, "-c", main, str(tmp_path)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("how", HIDDEN)
def test_an_access_is_seen_under_every_name(tmp_path, how):
    code, what = HIDDEN[how]
    path = "<thread>" if "pool" in how else "m.py"
    assert {"reached_for": what, "path": path} in reached_for(tmp_path, code)


def test_what_the_library_does_for_itself_is_no_access(tmp_path):
    assert reached_for(tmp_path, HONEST) == []


def test_tests_are_not_watched(tmp_path):
    assert reached_for(tmp_path, HIDDEN["a generator"][0], "test_m.py") == []


def test_nothing_leads_to_the_function_that_installs_handlers(tmp_path):
    assert reached_for(tmp_path, "import signal\nassert not hasattr(signal.signal, '__wrapped__')\n") == []


def test_a_signal_that_is_ignored_and_a_thread_are_no_access(tmp_path):
    code = "import signal, threading\nsignal.signal(16, signal.SIG_IGN)\nthreading.Thread(target=int).start()\n"
    assert reached_for(tmp_path, code) == []


def test_an_access_is_told_once(tmp_path):
    assert len(reached_for(tmp_path, HIDDEN["a generator"][0] * 3)) == 1
