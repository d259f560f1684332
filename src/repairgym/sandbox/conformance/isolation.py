"""Isolation: operations that must fail in an isolating sandbox."""

import os
import socket
import tempfile
from pathlib import Path

from repairgym.sandbox.base import SandboxLimits
from repairgym.sandbox.conformance.site import Site, checks, python, require, shell

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
_FORK_BOMB = """
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


_UPGRADES = """
import importlib.metadata, os, pathlib, subprocess, sys, zipfile
import ensurepip
wheels = pathlib.Path(ensurepip.__file__).parent.glob('_bundled/pip-*.whl')
pip = [sys.executable, '-c', 'import sys; sys.path[:0] = sys.argv[1:2]; del sys.argv[1]; from pip._internal.cli.main '
       'import main; sys.exit(main())', str(next(wheels, '')), 'install', '--upgrade', '--no-deps', '--quiet']
plain = {name: value for name, value in os.environ.items() if not name.startswith(('PIP_', 'UV_'))}
made = '/tmp/iniconfig-99.0-py3-none-any.whl'
with zipfile.ZipFile(made, 'w') as wheel:
    info = 'iniconfig-99.0.dist-info/'
    wheel.writestr('iniconfig/__init__.py', '')
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: iniconfig\\nVersion: 99.0\\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(info + 'RECORD', '')
other = 'iniconfig!=' + importlib.metadata.version('iniconfig')
attempts = {
    'from an index': [*pip, '--retries', '0', '--timeout', '2', other],
    'from a wheel': [*pip, '--no-index', made],
}
for name, command in attempts.items():
    done = subprocess.run(command, env=plain, capture_output=True, text=True)
    if done.returncode == 0:
        print('upgraded', name)
    elif 'ERROR' not in done.stderr:
        print('not tried', name, done.stderr)
if importlib.metadata.version('iniconfig') == '99.0':
    print('another version')
"""


async def no_privileges(site: Site) -> None:
    """No capability, no way to get one, no root, and no system call that could lead out."""
    async with site.sandbox() as sandbox:
        status = (await shell(sandbox, "cat /proc/self/status")).stdout.decode()
        for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
            require(line in status, line, status)
        require((await shell(sandbox, "id -u")).stdout == b"1000\n", "user 1000", "another")
        result = await python(sandbox, _TRY_CALLS)
        require(result.exit_status == 0 and not result.stdout, "EPERM for every call", result)


async def no_network(site: Site) -> None:
    """No port or abstract socket of the host is in reach; the sandbox's own loopback works."""
    program = (
        "import socket, sys\n"
        "own = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(own.getsockname(), 5)\n"
        "port, name = int(sys.argv[1]), '\\0' + sys.argv[2]\n"
        "inet, unix = socket.AF_INET, socket.AF_UNIX\n"
        "for family, address in ((inet, ('127.0.0.1', port)), (unix, name), (inet, ('192.0.2.1', 80))):\n"
        "    try: socket.socket(family).connect(address)\n"
        "    except OSError: continue\n"
        "    print('reached', address)"
    )
    name = f"repairgym-conformance-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        async with site.sandbox() as sandbox:
            port = str(server.getsockname()[1])
            result = await python(sandbox, program, port, name)
            require(result.exit_status == 0 and not result.stdout, "no connection", result)


async def no_upgrades(site: Site) -> None:
    """The installer of Python cannot change a package of the environment, from an index or a local wheel."""
    async with site.sandbox() as sandbox:
        result = await python(sandbox, _UPGRADES)
        require(result.exit_status == 0 and not result.stdout, "no upgrade, and two that were tried", result)


async def no_host_files(site: Site) -> None:
    """Secrets and other folders of the host are invisible, and everything visible is read-only."""
    with tempfile.TemporaryDirectory(prefix="repairgym-secret-") as folder:
        secret = Path(folder, "secret")
        secret.write_text("secret")
        async with site.sandbox() as sandbox:
            script = (
                f"for path in {secret} {site.tree}/run.sh /etc/shadow /home /.repairgym/tree /.repairgym/scratch "
                "/proc/1/root/etc /proc/1/environ /proc/1/fd/0; do head -c 1 $path 2>/dev/null && echo read $path; "
                "ls $path/* 2>/dev/null && echo seen $path; done; "
                "for path in / /usr /opt/env /opt/repairgym /etc /proc/sys/kernel /.repairgym; do "
                "touch $path/repairgym-test 2>/dev/null && echo written $path; done; "
                "echo x 2>/dev/null > /proc/sys/kernel/core_pattern && echo written core_pattern; true"
            )
            result = await shell(sandbox, script)
            require(result.exit_status == 0 and not result.stdout, "nothing read, seen or written", result)


async def private_folders(site: Site) -> None:
    """``/tmp`` and ``/dev/shm`` are the sandbox's own and empty."""
    async with site.sandbox() as first, site.sandbox() as second:
        result = await shell(first, "ls -A /tmp /dev/shm; echo x > /tmp/x; echo y > /dev/shm/y")
        require(result.stdout.split() == [b"/dev/shm:", b"/tmp:"], "empty folders", result)
        result = await shell(second, "ls -A /tmp /dev/shm")
        require(result.stdout.split() == [b"/dev/shm:", b"/tmp:"], "empty folders", result)


async def disk_bound(site: Site) -> None:
    """All files of a sandbox have one bound, and the sandbox stays usable at it."""
    async with site.sandbox(limits=SandboxLimits(disk_bytes=8 << 20)) as sandbox:
        script = "for i in 1 2 3 4 5 6; do head -c 3000000 /dev/zero > fill$i; done; head -c 3000000 /dev/zero > /tmp/f"
        result = await shell(sandbox, script)
        require(b"No space left" in result.stderr, "no space left", result)
        result = await shell(sandbox, "rm fill*; echo ok > fine && cat fine")
        require(result.stdout == b"ok\n", "a usable sandbox", result)


async def process_bound(site: Site) -> None:
    """A fork bomb stops at the limit of its own sandbox and affects no other."""
    limits = SandboxLimits(num_processes=40)
    async with site.sandbox(limits=limits) as first, site.sandbox(limits=limits) as second:
        result = await python(first, _FORK_BOMB)
        require(10 < int(result.stdout) < 40, "fewer than 40 processes", result)
        require((await shell(second, "echo fine")).stdout == b"fine\n", "a second sandbox that works", "none")
        require((await shell(first, "echo fine")).stdout == b"fine\n", "a sandbox that works again", "none")


async def other_processes(site: Site) -> None:
    """Only the sandbox's own processes are visible, and the trusted process cannot be ended, traced or read."""
    program = (
        "import os, signal\n"
        "for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP): os.kill(1, number)\n"
        "for name in ('mem', 'environ', 'maps', 'fd/0'):\n"
        "    try: os.close(os.open('/proc/1/' + name, os.O_RDONLY))\n"
        "    except PermissionError: continue\n"
        "    print('opened', name)\n"
        "print(sorted(int(name) for name in os.listdir('/proc') if name.isdigit())[2:])"
    )
    async with site.sandbox() as sandbox:
        result = await python(sandbox, program)
        require(result.stdout == b"[]\n", "two processes, the first one out of reach", result)
        require((await shell(sandbox, "echo alive")).stdout == b"alive\n", "a live sandbox", "none")


CHECKS = checks(
    no_privileges,
    no_network,
    no_upgrades,
    no_host_files,
    private_folders,
    disk_bound,
    process_bound,
    other_processes,
    is_isolating_only=True,
)
