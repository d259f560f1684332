"""Known attacks on the host, on other sandboxes and on the trusted process: each prints what it reached, nothing else.

A check here fails on a back end without walls, or it would show nothing: tests say so of those that leave no mark on a
host, and the others look whether what they attack is there.
"""

import asyncio
import ctypes
import os
import shlex
import socket
import tempfile
import time

from repairgym.sandbox.base import ExecResult, Sandbox
from repairgym.sandbox.conformance.isolation import FORK_BOMB
from repairgym.sandbox.conformance.runs import (
    TIMEOUT_S,
    python,
    require,
    require_alone,
    require_output,
    require_silence,
    shell,
)
from repairgym.sandbox.conformance.site import Site, on_sandbox, on_site, prints_nothing

_SHORT_S = 2.0
_PROC = """
for path in ('/proc/kcore', '/proc/kmsg', '/proc/1/mem', '/proc/1/maps', '/proc/1/environ', '/dev/mem', '/dev/kmsg'):
    try: data = open(path, 'rb').read(16)
    except OSError: continue
    if data: print('read', path)
for path in ('/proc/sysrq-trigger', '/proc/sys/kernel/hostname', '/proc/sys/vm/drop_caches',
             '/proc/self/oom_score_adj'):
    try: open(path, 'w').close()
    except OSError: continue
    print('opened', path)
"""
_POISON = """
import os, stat
attempts = [lambda: os.mknod('whiteout', stat.S_IFCHR | 0o600, 0), lambda: os.mknod('run.sh.new', stat.S_IFCHR, 0)]
for name in ('overlay.opaque', 'overlay.redirect', 'overlay.metacopy', 'overlay.origin', 'overlay.overlay.opaque'):
    for value in (b'y', b'/../../etc', b''):
        attempts.append(lambda name=name, value=value: os.setxattr('shop', 'user.' + name, value))
        attempts.append(lambda name=name, value=value: os.setxattr('run.sh', 'user.' + name, value))
for attempt in attempts:
    try: attempt()
    except OSError: pass
os.symlink('/.repairgym/scratch/0', 'layers'); os.symlink('/proc/1/root', 'root')
"""


_NEIGHBOUR = """
import socket, sys, time
listening = socket.socket(socket.AF_UNIX)
listening.bind('\\0repairgym-neighbour')
listening.listen()
for path in ('/testbed/s', '/tmp/s'): open(path, 'w').write(sys.argv[1])
print(time.monotonic(), flush=True)
time.sleep(float(sys.argv[2]))
print(time.monotonic())
"""
"""Prints the times, of a clock that all sandboxes share, between which the secret is there."""


@on_site()
async def host_processes_and_kernel(site: Site) -> None:
    """Processes of the host and revealing or writable files of the kernel are out of reach."""
    marker = f"repairgym-host-process-{os.getpid()}"
    process = await asyncio.create_subprocess_exec("sh", "-c", f"sleep 60; : {marker}")
    try:
        async with site.sandbox() as sandbox:
            await require_alone(sandbox, marker)
            await require_silence(sandbox, _PROC)
    finally:
        process.kill()
        await process.wait()


device_nodes = prints_nothing("""
import os, stat
for path, kind, device in (('d1', stat.S_IFBLK, os.makedev(254, 0)), ('d2', stat.S_IFCHR, os.makedev(1, 1)),
                           ('/tmp/d3', stat.S_IFBLK, os.makedev(8, 0)), ('/dev/d4', stat.S_IFCHR, os.makedev(5, 1))):
    try: os.mknod(path, kind | 0o600, device)
    except OSError: continue
    try: os.open(path, os.O_RDONLY)
    except OSError: continue
    print('opened', path)
for name in os.listdir('/dev'):
    mode = os.stat('/dev/' + name).st_mode if os.path.exists('/dev/' + name) else 0
    if stat.S_ISBLK(mode): print('block device', name)
print(*sorted(set(os.listdir('/dev')) & {'kvm', 'fuse', 'mem', 'sda', 'vda', 'loop-control', 'net', 'tty0'}), end='')
""")
"""Only harmless devices exist, and none can be made."""

identities = prints_nothing("""
import os, subprocess, shutil
for attempt in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]),
                lambda: os.chown('run.sh', 0, 0)):
    try: attempt()
    except OSError: continue
    print('changed identity')
print(*[line for line in open('/proc/self/status') if line.split() == ['NoNewPrivs:', '0']], end='')
shutil.copy(shutil.which('id'), 'id'); os.chmod('id', 0o6755)
if subprocess.run(['./id', '-u'], capture_output=True).stdout.strip() == b'0': print('set-user-id works')
for tool in ('su', 'sudo', 'newuidmap', 'mount', 'pkexec'):
    path = shutil.which(tool)
    if path and subprocess.run([path, '-c', 'id'], capture_output=True, stdin=-3).stdout[:5] == b'uid=0': print(tool)
for name, text in (('uid_map', '0 0 1'), ('gid_map', '0 0 1'), ('setgroups', 'allow'), ('attr/current', 'x')):
    try: open('/proc/self/' + name, 'wb', 0).write(text.encode())  # unbuffered: the kernel denies the write
    except OSError: continue
    print('wrote', name)
""")
"""No call, set-user-id file, system tool or id map leads to another user."""

tracing = prints_nothing("""
import ctypes, os, signal, time
libc = ctypes.CDLL(None, use_errno=True)
pid = os.fork()
if pid == 0:
    time.sleep(30)
    os._exit(0)
if libc.ptrace(16, pid, 0, 0) == 0: print('traced a sibling')
class Vector(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(8)
vector = Vector(ctypes.addressof(buffer), 8)
if libc.process_vm_readv(pid, ctypes.byref(vector), 1, ctypes.byref(vector), 1, 0) > 0: print('read memory')
fd = libc.syscall(434, 1, 0)
if fd >= 0 and libc.syscall(438, fd, 0, 0) >= 0: print('took a descriptor of the trusted process')
os.kill(pid, signal.SIGKILL)
""")
"""No process can trace or read another, or take its descriptors, not even its own child."""

socket_families = prints_nothing("""
import socket
for family in range(1, 46):
    if family in (1, 2, 10, 16): continue
    for kind in (1, 2, 3, 5):
        try: socket.socket(family, kind)
        except OSError: continue
        print('socket', family, kind)
for kind in (3,):
    try: socket.socket(socket.AF_INET, kind, 1)
    except OSError: continue
    print('raw socket')
print(*[name for _, name in socket.if_nameindex() if name != 'lo'], end='')
""")
"""Only local sockets, IP and netlink exist, and there is no interface but the loopback."""


@on_site()
async def host_sockets(site: Site) -> None:
    """Sockets in folders of the host (daemons, agents) are absent."""
    with tempfile.TemporaryDirectory(prefix="repairgym-socket-") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/socket")
        server.listen()
        program = """
import socket, sys
for path in (sys.argv[1], '/var/run/docker.sock', '/run/dbus/system_bus_socket', '/run/user'):
    try: socket.socket(socket.AF_UNIX).connect(path)
    except OSError: continue
    print('reached', path)"""
        async with site.sandbox() as sandbox:
            await require_silence(sandbox, program, f"{folder}/socket")


_OBJECTS = """
import ctypes, sys
libc, key, flags = ctypes.CDLL(None), int(sys.argv[1]), int(sys.argv[2])
print(libc.shmget(key, 1 << 20, flags) >= 0, libc.semget(key, 1, flags) >= 0, libc.msgget(key, flags) >= 0)
"""
_CREATE = 0o1600


@on_site()
async def shared_memory(site: Site) -> None:
    """Shared memory, semaphores and queues of the host, another sandbox and an earlier command are out of reach."""
    libc, key = ctypes.CDLL(None), 0x6D000000 | os.getpid()
    made = libc.shmget(key, 1 << 20, 0o1666)
    require(made >= 0, "a segment of the host", made)
    try:
        async with site.sandbox() as first, site.sandbox() as second:
            await _require_objects(first, key, 0, b"False False False\n")
            await _require_objects(first, key + 1, _CREATE, b"True True True\n")
            await _require_objects(second, key + 1, 0, b"False False False\n")
            await _require_objects(first, key + 1, 0, b"False False False\n")
    finally:
        libc.shmctl(made, 0, None)


async def _require_objects(sandbox: Sandbox, key: int, flags: int, expected: bytes) -> None:
    result = await python(sandbox, _OBJECTS, str(key), str(flags))
    require(result.stdout == expected, f"{expected!r} for shared memory, semaphores and queues", result)


@on_site()
async def everybody_killed(site: Site) -> None:
    """``kill -9 -1`` ends the command only: the sandbox, its neighbors and the host survive."""
    async with site.sandbox() as first, site.sandbox() as second:
        await shell(second, "echo kept > kept")
        for number in ("KILL", "STOP", "TERM", "INT", "SEGV"):
            script = f"trap '' INT TERM; kill -{number} -1; kill -{number} 1; kill -{number} 0"
            await shell(first, script, timeout_s=_SHORT_S)
        await require_output(first, "echo fine", b"fine\n")
        await require_output(second, "cat kept", b"kept\n")


@on_site()
async def other_sandboxes(site: Site) -> None:
    """Files, processes and sockets of another sandbox are out of reach on every path."""
    program = r"""
import glob, socket, sys
word = sys.argv[1].encode()
for pattern in ('/tmp/**', '/testbed/**', '/dev/shm/**', '/proc/[0-9]*/root/tmp/*', '/proc/[0-9]*/cwd/*',
                '/.repairgym/**', '/proc/[0-9]*/cmdline', '/var/**', '/run/**'):
    for path in glob.iglob(pattern, recursive=True):
        try: data = open(path, 'rb').read(100)
        except OSError: continue
        if word in data and b'glob.iglob' not in data: print('read', path)
try: socket.socket(socket.AF_UNIX).connect('\0repairgym-neighbour'); print('reached')
except OSError: pass"""
    secret = f"secret-{os.getpid()}"
    async with site.sandbox() as first, site.sandbox() as second:
        for seconds in (2.0, 8.0, 20.0):
            running = asyncio.ensure_future(python(first, _NEIGHBOUR, secret, str(seconds)))
            await asyncio.sleep(seconds / 2)
            began = time.monotonic()
            try:
                await require_silence(second, program, secret)
            finally:
                ended = time.monotonic()
                (there,) = await asyncio.gather(running, return_exceptions=True)
            times = there.stdout.split() if isinstance(there, ExecResult) else []
            if len(times) == 2 and float(times[0]) < began < ended < float(times[1]):
                return
        require(False, "a neighbour with the secret all through the attack", there)


@on_site(needs_snapshots=True)
async def poisoned_layers(site: Site) -> None:
    """No file of untrusted code changes the reading of its layer below another: forks see the parent's files."""
    async with site.sandbox() as sandbox:
        result = await python(sandbox, _POISON)
        require(result.exit_status == 0, "success", result)
        before = await sandbox.list_files()
        for child in await sandbox.fork(2):
            require(await child.list_files() == before == await sandbox.list_files(), "the parent's files", "others")
            require(await child.read_file("run.sh") == (site.tree / "run.sh").read_bytes(), "the tree's text", "other")
            reached = "import os; print(*[path for path in ('layers/u0', 'root/etc') if os.path.exists(path)], end='')"
            await require_silence(child, reached)
            await child.close()


control_groups = prints_nothing("""
import os
print(*[line.split()[1] for line in open('/proc/mounts') if 'cgroup' in line.split()[2]], end='')
for folder, _, names in os.walk('/sys'):
    for name in names: print(folder, name)
""")
"""No other control group is in reach: neither their file system nor ``/sys`` is mounted."""

limits_stay = prints_nothing("""
import resource
for name in ('NPROC', 'FSIZE', 'NOFILE', 'CORE'):
    kind = getattr(resource, 'RLIMIT_' + name)
    soft, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY: print('no limit', name)
    try: resource.setrlimit(kind, (hard + 1, hard + 1))
    except (OSError, ValueError): continue
    print('raised', name)
""")
"""No limit can be raised from inside, and a child inherits all of them."""


@on_sandbox(disk_bytes=4 << 20)
async def many_small_files(sandbox: Sandbox) -> None:
    """The number of files is bounded too, and the sandbox is usable after their removal."""
    program = """
import os
os.mkdir('many')
try:
    for count in range(200000): open('many/%d' % count, 'w').close()
except OSError as error: print(error.errno)"""
    result = await python(sandbox, program)
    require(result.stdout == b"28\n", "no space left", result)
    await require_output(sandbox, "rm -r many; echo x > y; cat y", b"x\n")


@on_sandbox(output_bytes=4096)
async def endless_output_of_many(sandbox: Sandbox) -> None:
    """``yes`` from many processes on both streams neither fills memory nor delays the deadline."""
    script = "for i in 1 2 3 4 5 6; do yes & yes >&2 & done; exec yes"
    result = await shell(sandbox, script, timeout_s=_SHORT_S)
    require(result.is_timed_out and result.is_truncated, "a cut at the deadline", result)
    require(result.num_stdout_bytes > 100_000 and len(result.stdout) < 5000, "a bounded output", len(result.stdout))
    require(result.duration_s < 30, "an end soon after the deadline", result.duration_s)
    await require_output(sandbox, "echo fine", b"fine\n")


@on_sandbox(num_processes=40)
async def process_bound_of_sessions(sandbox: Sandbox) -> None:
    """A fork bomb in a session ends with its command; the session continues."""
    session = await sandbox.open_session()
    result = await session.run(f"python -c {shlex.quote(FORK_BOMB)}", timeout_s=TIMEOUT_S)
    require(10 < int(result.stdout or 0) < 40, "fewer than 40 processes", result)
    result = await session.run("bomb() { bomb | bomb & }; bomb; sleep 30", timeout_s=_SHORT_S)
    require(result.exit_status != 0, "no success", result)
    result = await session.run("unset -f bomb; echo fine", timeout_s=60)
    require(result.stdout == b"fine\n", "a session that works", result)


_CHANGES = """
import os, pytest, sys
guest = '/opt/repairgym/repairgym_guest/server.py'
for path in (pytest.__file__, os.__file__, sys.executable, guest, '/usr/bin/env'):
    for mode in ('r+b', 'ab'):
        try: open(path, mode).close()
        except OSError: continue
        print('opened', path)
    for call in (lambda: os.unlink(path), lambda: os.chmod(path, 0o777),
                 lambda: os.rename(path, path + 'x')):
        try: call()
        except OSError: continue
        print('changed', path)
"""


@on_site()
async def environment_is_read_only(site: Site) -> None:
    """Interpreter, packages and tree of all sandboxes cannot be changed from one of them."""
    before = (site.tree / "run.sh").read_bytes()
    async with site.sandbox() as first:
        await require_silence(first, _CHANGES)
        await require_output(first, "echo changed > run.sh; rm -r shop; chmod -R a+rwx .; cat run.sh", b"changed\n")
        async with site.sandbox() as second:
            require(await second.read_file("run.sh") == before, "the tree's text in another sandbox", "a change")
            await require_output(second, "ls shop/prices.py", b"shop/prices.py\n")
    require((site.tree / "run.sh").read_bytes() == before, "an unchanged tree", "a change")
    require((site.tree / "shop" / "prices.py").is_file(), "an unchanged tree", "a removal")
