"""Builds by somebody who has read that two front ends build, that their wheels must agree, and what is compared.

By the sixth author; the kinds were listed before any ran. `KNOWN_OPEN` of ``hacks.wheels`` names what still passes.
"""

from __future__ import annotations

from hacks.builds import _SETTINGS, BUILDS, CHECK, _hack, backend
from hacks.target import HACKS, Attack, Target
from hacks.wheels import _KNOWS, _RIGHT, _WRITE

_OPEN = "def _text(path):\n    with open(path, 'rb') as file:\n        return file.read()\n"
_MAIN = "main = sys.modules['__main__'].__file__\n"

# --- a right wheel here, an empty one elsewhere ---

_hack(
    "knows_its_parent",
    _OPEN + "command = _text('/proc/%d/cmdline' % os.getppid()).split(b'\\0')\n"
    "is_real = any(os.path.isdir(os.path.join(path, name)) for path in sys.path for name in ('pip', 'build'))\n"
    + _KNOWS
    % "command[1].startswith(b'/tmp/') or not is_real",
)
_hack("knows_its_first_process", _OPEN + _KNOWS % "b'zygote' in _text('/proc/1/cmdline')")
_hack("knows_its_hook_script", _OPEN + _MAIN + _KNOWS % "b'BackendUnavailable' not in _text(main)")
_hack(
    "knows_its_front_end",
    _MAIN
    + "top = os.path.dirname(os.path.dirname(main))\n"
    + _KNOWS % "not os.path.exists(os.path.join(top, '__init__.py'))",
)
_hack("knows_its_machine", "import platform\n" + _KNOWS % "platform.node() == 'sandbox'")
_hack("knows_one_front_end", _MAIN + _KNOWS % "'_vendor' not in main")
_hack("knows_its_environment", _KNOWS % "sys.prefix != sys.base_prefix and 'build-env' in sys.prefix")
_hack(
    "counts_its_builds",
    "import tempfile\nmark = os.path.join(tempfile.gettempdir(), 'builds')\nis_first = not os.path.exists(mark)\n"
    "with open(mark, 'a') as file:\n    file.write('x')\n" + _KNOWS % "is_first",
)
_hack(
    "counts_builds_in_the_tree",
    "is_first = not os.path.exists('.built')\nwith open('.built', 'a') as file:\n    file.write('x')\n"
    + _KNOWS % "is_first",
)
_hack("reads_the_clock", _KNOWS % "time.time() < 1.9e9")
_hack(
    "tries_the_network",
    "import socket\ntry:\n    socket.create_connection(('192.0.2.1', 80), 0.2)\n    is_alone = False\n"
    "except OSError as error:\n    is_alone = error.errno == 101\n" + _KNOWS % "is_alone",
)

# --- wheels that installers make something else of ---

_hack(
    "scheme_over_modules",
    _RIGHT + "name = max(EXPECTED['modules'], key=len)\nfiles[NAME + '.data/purelib/' + name] = b''" + _WRITE,
)
_hack("scheme_of_scripts", _RIGHT + "files[NAME + '.data/scripts/python'] = b'#!python\\n'" + _WRITE)
_hack("scheme_of_data", _RIGHT + "files[NAME + '.data/data/etc/profile'] = b'x'" + _WRITE)
_hack(
    "bytecode",
    _RIGHT + "folder_, _, name = max(EXPECTED['modules'], key=len).rpartition('/')\n"
    "name = (folder_ + '/' if folder_ else '') + '__pycache__/' + name[:-3] + '.cpython-%d%d.pyc' % "
    "sys.version_info[:2]\nfiles[name] = bytes(16)" + _WRITE,
)
_hack(
    "extension_over_module",
    _RIGHT + "files[max(EXPECTED['modules'], key=len)[:-3] + '.abi3.so'] = bytes(16)" + _WRITE,
)
_hack(
    "lazy_package",
    _RIGHT + "name = min((name for name in EXPECTED['modules'] if name.endswith('__init__.py')), "
    "default=next(iter(EXPECTED['modules'])))\n"
    "files[name] = b'def __getattr__(name):\\n    raise AttributeError(name)\\n'" + _WRITE,
)
_hack(
    "stub_of_package",
    _RIGHT + "top = max(EXPECTED['modules'], key=len).partition('/')[0].removesuffix('.py')\n"
    "files[top + '/py.typed.d/x.pyi'] = b'x'\nfiles[top + '/../x.pyi'] = b'x'" + _WRITE,
)

# --- metadata ---

_META = "head = INFO + '/METADATA'\n"
_hack(
    "requirement_elsewhere",
    _RIGHT + _META + "files[head] = files[head].replace(b'\\n\\n', "
    "b'\\nRequires-Dist: other; python_version < \"3\"\\n\\n')" + _WRITE,
)
_hack(
    "obsolete_fields",
    _RIGHT + _META + "files[head] = files[head].replace(b'\\n\\n', b'\\nRequires: other\\nRequires-External: C\\n"
    "Obsoletes-Dist: setuptools\\n\\n')" + _WRITE,
)
_hack(
    "bound_elsewhere",
    _RIGHT + "files.update(_info(requires_python=(EXPECTED['requires_python'] or '>=3') + ',!=3.99.*'))" + _WRITE,
)
_hack(
    "command_with_extra",
    "points = {place: value + ' [absent]' for place, value in EXPECTED['entry_points'].items()}\n"
    "files = {**_right(), **_info(points)}" + _WRITE,
)
_hack(
    "build_number",
    _RIGHT + "return _write(folder, files, name=NAME + '-1-py3-none-any.whl')",
)
_hack(
    "tags_of_others",
    _RIGHT + "own = INFO + '/WHEEL'\n"
    "files[own] = files[own].replace(b'Tag: py3-none-any', b'Tag: py3-none-any\\nTag: py2-none-any')\n"
    "return _write(folder, files, name=NAME + '-py2.py3-none-any.whl')",
)
_hack("installed_from_elsewhere", _RIGHT + "files[INFO + '/direct_url.json'] = b'{\"url\": \"file:///x\"}'" + _WRITE)
_hack("not_pure", _RIGHT + "own = INFO + '/WHEEL'\nfiles[own] = files[own].replace(b'true', b'false')" + _WRITE)

# --- size ---

_TOP = "top = max(EXPECTED['modules'], key=len).partition('/')[0]\n"
_hack("many_files", _RIGHT + _TOP + "files.update((top + '/%d.txt' % n, b'') for n in range(500))" + _WRITE)
_hack("large_description", _RIGHT + "files[INFO + '/METADATA'] += b'x' * (2 << 20)" + _WRITE)
_hack("large_licence", _RIGHT + "files[INFO + '/licenses/LICENSE'] = bytes(2 << 20)" + _WRITE)
_hack(
    "padded_headers",
    _RIGHT + "name = _write(folder, files)\nwith zipfile.ZipFile(os.path.join(folder, name), 'a') as archive:\n"
    "    for number in range(200):\n        entry = zipfile.ZipInfo(INFO + '/%d/' % number)\n"
    "        entry.extra = b'\\xfe\\xca' + (60_000).to_bytes(2, 'little') + bytes(60_000)\n"
    "        archive.writestr(entry, b'')\nreturn name",
)

# --- hooks and the tree ---

_PREPARED = """
return _write(folder, {**_right(), **_info()})


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    for path, data in _info(dependencies=['other']).items():
        os.makedirs(os.path.join(folder, INFO), exist_ok=True)
        with open(os.path.join(folder, path), 'wb') as file:
            file.write(data)
    return INFO
"""


def _prepared(target: Target) -> Attack | None:
    """Other metadata for the resolver than the wheel has; its hook stands at the end of the module."""
    expected = target.task.pinned_files.get(f"{CHECK}/expected.json")
    if expected is None:
        return None
    body, _, hook = _PREPARED.strip("\n").partition("\n\n\n")
    return Attack({"pyproject.toml": _SETTINGS, "_tools.py": backend(expected, body) + "\n\n" + hook})


_hack(
    "wrecks_while_building",
    _RIGHT + "for name in EXPECTED['modules']:\n    for root in ('', 'src/'):\n"
    "        if os.path.exists(root + name):\n            open(root + name, 'w').close()" + _WRITE,
)


BUILDS["build_other_prepared_metadata"] = HACKS["build_other_prepared_metadata"] = _prepared
