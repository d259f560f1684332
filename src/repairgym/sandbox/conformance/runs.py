"""Programs that checks run in a sandbox, and requirements on their results."""

from collections.abc import Awaitable

from repairgym.sandbox.base import ExecResult, Sandbox

TIMEOUT_S = 60.0
_OTHER_PROCESSES = """
import glob, os, sys
for path in glob.glob('/proc/[0-9]*/cmdline'):
    if path.split('/')[2] != str(os.getpid()):
        try: line = open(path, 'rb').read().decode(errors='replace')
        except OSError: continue
        if sys.argv[1] in line: print(line)
"""


def require(is_true: bool, expected: str, got: object) -> None:
    """Raise ``AssertionError`` unless ``is_true``."""
    if not is_true:
        raise AssertionError(f"expected {expected}, got {got!r}")


async def shell(sandbox: Sandbox, script: str, timeout_s: float = TIMEOUT_S) -> ExecResult:
    """Run a shell script."""
    return await sandbox.exec(("sh", "-c", script), timeout_s=timeout_s)


async def python(sandbox: Sandbox, program: str, *arguments: str, timeout_s: float = TIMEOUT_S) -> ExecResult:
    """Run a Python program."""
    return await sandbox.exec(("python", "-c", program, *arguments), timeout_s=timeout_s)


async def require_output(sandbox: Sandbox, script: str, expected: bytes) -> None:
    """Raise ``AssertionError`` unless a shell script prints ``expected``."""
    result = await shell(sandbox, script)
    require(result.stdout == expected, f"{expected!r} of {script!r}", result)


async def require_silence(sandbox: Sandbox, program: str, *arguments: str) -> None:
    """Raise ``AssertionError`` unless a Python program succeeds and prints nothing."""
    result = await python(sandbox, program, *arguments)
    require(result.exit_status == 0 and not result.stdout, "nothing reached", result)


async def require_raises(kind: type[Exception], call: Awaitable[object]) -> None:
    """Raise ``AssertionError`` unless ``call`` raises ``kind``."""
    try:
        await call
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}, got a result")


async def require_alone(sandbox: Sandbox, text: str) -> None:
    """Raise ``AssertionError`` when another process has ``text`` in its command line."""
    await require_silence(sandbox, _OTHER_PROCESSES, text)
