"""Isolation: operations that must fail in an isolating sandbox."""

import ensurepip
import os
import socket
import tempfile
from pathlib import Path

from repairgym.errors import SandboxContentError
from repairgym.sandbox.base import Sandbox
from repairgym.sandbox.conformance.runs import python, require, require_output, require_raises, require_silence, shell
from repairgym.sandbox.conformance.site import Site, on_sandbox, on_site

_TRY_CALLS = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
tried = {
    'mount': lambda: libc.mount(b'none', b'/tmp', b'tmpfs', 0, None),
    'umount': lambda: libc.umount2(b'/.repairgym', 2),
    'unshare': lambda: libc.unshare(0x10000000),
    'setns': lambda: libc.setns(0, 0),
    'ptrace': lambda: libc.ptrace(0, 0, 0, 0),
    'chroot': lambda: libc.chroot(b'/tmp'),
    'vsock': lambda: libc.socket(40, 1, 0),
    'clone user namespace': lambda: libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000011, 0, 0, 0, 0),
}
for name, call in tried.items():
    if call() != -1 or ctypes.get_errno() != errno.EPERM:
        print(name, os.strerror(ctypes.get_errno()))
"""
FORK_BOMB = """
import os, time
count = 0
try:
    while count < 500:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        count += 1
except OSError:
    pass
print(count)
"""


@on_sandbox()
async def no_privileges(sandbox: Sandbox) -> None:
    """No capability, no way to get one, no root, and no system call that could lead out."""
    status = (await shell(sandbox, "cat /proc/self/status")).stdout.decode()
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        require(line in status, line, status)
    await require_output(sandbox, "id -u", b"1000\n")
    await require_silence(sandbox, _TRY_CALLS)


@on_site()
async def no_network(site: Site) -> None:
    """No port or abstract socket of the host is in reach; the sandbox's own loopback works."""
    program = r"""
import socket, sys
own = socket.create_server(('127.0.0.1', 0))
socket.create_connection(own.getsockname(), 5)
port, name = int(sys.argv[1]), '\0' + sys.argv[2]
inet, unix = socket.AF_INET, socket.AF_UNIX
for family, address in ((inet, ('127.0.0.1', port)), (unix, name), (inet, ('192.0.2.1', 80))):
    try: socket.socket(family).connect(address)
    except OSError: continue
    print('reached', address)"""
    name = f"repairgym-conformance-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        async with site.sandbox() as sandbox:
            await require_silence(sandbox, program, str(server.getsockname()[1]), name)


_UPGRADES = """
import importlib.metadata, os, sys, zipfile
sys.path.insert(0, '/testbed/pip.whl')
import pip._internal.cli.main, pip._internal.commands.install  # once for both attempts, which are forks
made = '/tmp/iniconfig-99.0-py3-none-any.whl'
with zipfile.ZipFile(made, 'w') as wheel:
    info = 'iniconfig-99.0.dist-info/'
    wheel.writestr('iniconfig/__init__.py', '')
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: iniconfig\\nVersion: 99.0\\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(info + 'RECORD', '')
other = 'iniconfig!=' + importlib.metadata.version('iniconfig')
os.environ = {name: value for name, value in os.environ.items() if not name.startswith(('PIP_', 'UV_'))}
attempts = {'from an index': ['--retries', '0', '--timeout', '2', other], 'from a wheel': ['--no-index', made]}
for name, arguments in attempts.items():
    if not (child := os.fork()):
        os.dup2(os.open('/tmp/said', os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os._exit(pip._internal.cli.main.main(['install', '--upgrade', '--no-deps', '--quiet', *arguments]))
    status, text = os.waitpid(child, 0)[1], open('/tmp/said').read()
    if not status or 'ERROR' not in text:
        print('not rejected', name, text)
if importlib.metadata.version('iniconfig') == '99.0':
    print('another version')
"""


@on_sandbox()
async def no_upgrades(sandbox: Sandbox) -> None:
    """An installer that an agent brings cannot change a package of the environment, from an index or a local wheel."""
    (installer,) = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
    await sandbox.write_file("pip.whl", installer.read_bytes())
    await require_silence(sandbox, _UPGRADES)


@on_site()
async def no_host_files(site: Site) -> None:
    """Secrets and other folders of the host are invisible, and everything visible is read-only (an image is a copy)."""
    shown = "/ /usr /opt/env /opt/repairgym /etc /.repairgym" if site.root is None else "/image /opt/repairgym"
    with tempfile.TemporaryDirectory(prefix="repairgym-secret-") as folder:
        secret = Path(folder, "secret")
        secret.write_text("secret")
        async with site.sandbox() as sandbox:
            script = (
                f"for path in {secret} {site.tree}/run.sh /etc/shadow /home /.repairgym/tree /.repairgym/scratch "
                "/proc/1/root/etc /proc/1/environ /proc/1/fd/0; do head -c 1 $path 2>/dev/null && echo read $path; "
                "ls $path/* 2>/dev/null && echo seen $path; done; "
                f"for path in {shown} /proc/sys/kernel; do "
                "touch $path/repairgym-test 2>/dev/null && echo written $path; done; "
                "echo x 2>/dev/null > /proc/sys/kernel/core_pattern && echo written core_pattern; true"
            )
            await require_output(sandbox, script, b"")


@on_site()
async def private_folders(site: Site) -> None:
    """``/tmp`` and ``/dev/shm`` are the sandbox's own and empty."""
    async with site.sandbox() as first, site.sandbox() as second:
        empty = b"/dev/shm:\n\n/tmp:\n"
        await require_output(first, "ls -A /tmp /dev/shm; echo x > /tmp/x; echo y > /dev/shm/y", empty)
        await require_output(second, "ls -A /tmp /dev/shm", empty)


@on_sandbox(disk_bytes=8 << 20)
async def disk_bound(sandbox: Sandbox) -> None:
    """All files of a sandbox have one bound, and the sandbox stays usable at it."""
    script = "for i in 1 2 3 4 5 6; do head -c 3000000 /dev/zero > fill$i; done; head -c 3000000 /dev/zero > /tmp/f"
    result = await shell(sandbox, script)
    require(b"No space left" in result.stderr, "no space left", result)
    await require_output(sandbox, "rm fill*; echo ok > fine && cat fine", b"ok\n")


@on_sandbox(disk_bytes=8 << 20)
async def full_disk(sandbox: Sandbox) -> None:
    """A write of the host into a full sandbox is an error of the content."""
    await shell(sandbox, "head -c 9000000 /dev/zero > fill; true")
    await require_raises(SandboxContentError, sandbox.write_file("more", b"x" * 1_000_000))
    await shell(sandbox, "rm fill more; true")
    await sandbox.write_file("more", b"x")


@on_site()
async def process_bound(site: Site) -> None:
    """A fork bomb stops at the limit of its own sandbox and affects no other."""
    async with site.sandbox(num_processes=40) as first, site.sandbox(num_processes=40) as second:
        result = await python(first, FORK_BOMB)
        require(10 < int(result.stdout) < 40, "fewer than 40 processes", result)
        await require_output(second, "echo fine", b"fine\n")
        await require_output(first, "echo fine", b"fine\n")


@on_sandbox()
async def other_processes(sandbox: Sandbox) -> None:
    """Only the sandbox's own processes are visible, and the trusted process cannot be ended, traced or read."""
    program = """
import os, signal
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP): os.kill(1, number)
for name in ('mem', 'environ', 'maps', 'fd/0'):
    try: os.close(os.open('/proc/1/' + name, os.O_RDONLY))
    except PermissionError: continue
    print('opened', name)
print(sorted(int(name) for name in os.listdir('/proc') if name.isdigit())[2:])"""
    result = await python(sandbox, program)
    require(result.stdout == b"[]\n", "two processes, the first one out of reach", result)
    await require_output(sandbox, "echo alive", b"alive\n")
