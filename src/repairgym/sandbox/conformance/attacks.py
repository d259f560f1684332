"""Known attacks on the host, on other sandboxes and on the trusted process: each prints what it reached, nothing else.

A check here fails on a back end without walls (tests say so), or it would show nothing.
"""

import asyncio
import ctypes
import os
import socket
import tempfile

from repairgym.sandbox.base import Sandbox, SandboxLimits
from repairgym.sandbox.conformance.site import Site, checks, python, require, shell

_SHORT_S = 2.0
_PROC = """
import os, sys
for name in os.listdir('/proc'):
    if name.isdigit() and int(name) != os.getpid():
        try: line = open('/proc/' + name + '/cmdline', 'rb').read()
        except OSError: continue
        if sys.argv[1].encode() in line: print('host process', name)
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
_DEVICES = """
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
"""
_IDENTITY = """
import os, subprocess, shutil
for attempt in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]),
                lambda: os.chown('run.sh', 0, 0)):
    try: attempt()
    except OSError: continue
    print('changed identity')
shutil.copy(shutil.which('id'), 'id'); os.chmod('id', 0o6755)
if subprocess.run(['./id', '-u'], capture_output=True).stdout.strip() == b'0': print('set-user-id works')
for tool in ('su', 'sudo', 'newuidmap', 'mount', 'pkexec'):
    path = shutil.which(tool)
    if path and subprocess.run([path, '-c', 'id'], capture_output=True, stdin=-3).stdout[:5] == b'uid=0': print(tool)
for name, text in (('uid_map', '0 0 1'), ('gid_map', '0 0 1'), ('setgroups', 'allow'), ('attr/current', 'x')):
    try: open('/proc/self/' + name, 'wb', 0).write(text.encode())  # unbuffered: the kernel denies the write
    except OSError: continue
    print('wrote', name)
"""
_SIBLING = """
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
"""
_FAMILIES = """
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
_GROUPS = """
import os
print(*[line.split()[1] for line in open('/proc/mounts') if 'cgroup' in line.split()[2]], end='')
for folder, _, names in os.walk('/sys'):
    for name in names: print(folder, name)
"""


async def _require_silence(sandbox: Sandbox, program: str, *arguments: str) -> None:
    result = await python(sandbox, program, *arguments)
    require(result.exit_status == 0 and not result.stdout, "nothing reached", result)


async def host_processes_and_kernel(site: Site) -> None:
    """Processes of the host and revealing or writable files of the kernel are out of reach."""
    marker = f"repairgym-host-process-{os.getpid()}"
    process = await asyncio.create_subprocess_exec("sh", "-c", f"sleep 60; : {marker}")
    try:
        async with site.sandbox() as sandbox:
            await _require_silence(sandbox, _PROC, marker)
    finally:
        process.kill()
        await process.wait()


async def device_nodes(site: Site) -> None:
    """Only harmless devices exist, and none can be made."""
    async with site.sandbox() as sandbox:
        result = await python(sandbox, _DEVICES)
        require(result.exit_status == 0 and not result.stdout.strip(), "no device", result)


async def identities(site: Site) -> None:
    """No call, set-user-id file, system tool or id map leads to another user."""
    async with site.sandbox() as sandbox:
        await _require_silence(sandbox, _IDENTITY)


async def tracing(site: Site) -> None:
    """No process can trace or read another, or take its descriptors, not even its own child."""
    async with site.sandbox() as sandbox:
        await _require_silence(sandbox, _SIBLING)


async def socket_families(site: Site) -> None:
    """Only local sockets, IP and netlink exist, and there is no interface but the loopback."""
    async with site.sandbox() as sandbox:
        result = await python(sandbox, _FAMILIES)
        require(result.exit_status == 0 and not result.stdout.strip(), "no other socket", result)


async def host_sockets(site: Site) -> None:
    """Sockets in folders of the host (daemons, agents) are absent."""
    with tempfile.TemporaryDirectory(prefix="repairgym-socket-") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/socket")
        server.listen()
        program = (
            "import socket, sys\n"
            "for path in (sys.argv[1], '/var/run/docker.sock', '/run/dbus/system_bus_socket', '/run/user'):\n"
            "    try: socket.socket(socket.AF_UNIX).connect(path)\n"
            "    except OSError: continue\n"
            "    print('reached', path)"
        )
        async with site.sandbox() as sandbox:
            await _require_silence(sandbox, program, f"{folder}/socket")


async def shared_memory(site: Site) -> None:
    """Shared memory of the host, of another sandbox and of an earlier command is out of reach."""
    attach = "import ctypes; print(ctypes.CDLL(None).shmget({key}, 4096, {flags}) >= 0)"
    libc, key = ctypes.CDLL(None), 0x6D000000 | os.getpid()
    made = libc.shmget(key, 4096, 0o1666)
    try:
        async with site.sandbox() as first, site.sandbox() as second:
            result = await python(first, attach.format(key=key, flags=0))
            require(result.stdout == b"False\n", "nothing of the host's", result)
            result = await python(first, attach.format(key=key + 1, flags=0o1600))
            require(result.stdout == b"True\n", "own shared memory", result)
            result = await python(second, attach.format(key=key + 1, flags=0))
            require(result.stdout == b"False\n", "nothing of the other's", result)
    finally:
        libc.shmctl(made, 0, None)


async def everybody_killed(site: Site) -> None:
    """``kill -9 -1`` ends the command only: the sandbox, its neighbors and the host survive."""
    async with site.sandbox() as first, site.sandbox() as second:
        await shell(second, "echo kept > kept")
        for number in ("KILL", "STOP", "TERM", "INT", "SEGV"):
            await shell(
                first, f"trap '' INT TERM; kill -{number} -1; kill -{number} 1; kill -{number} 0", timeout_s=_SHORT_S
            )
        require((await shell(first, "echo fine")).stdout == b"fine\n", "a sandbox that works", "none")
        require((await shell(second, "cat kept")).stdout == b"kept\n", "a neighbor that works", "none")


async def other_sandboxes(site: Site) -> None:
    """Files, processes and sockets of another sandbox are out of reach on every path."""
    program = (
        "import glob, socket, sys\n"
        "word = sys.argv[1].encode()\n"
        "for pattern in ('/tmp/**', '/testbed/**', '/dev/shm/**', '/proc/[0-9]*/root/tmp/*', '/proc/[0-9]*/cwd/*',\n"
        "                '/.repairgym/**', '/proc/[0-9]*/cmdline', '/var/**', '/run/**'):\n"
        "    for path in glob.iglob(pattern, recursive=True):\n"
        "        try: data = open(path, 'rb').read(100)\n"
        "        except OSError: continue\n"
        "        if word in data and b'glob.iglob' not in data: print('read', path)\n"
        "try: socket.socket(socket.AF_UNIX).connect('\\0repairgym-neighbour'); print('reached')\n"
        "except OSError: pass"
    )
    secret = f"secret-{os.getpid()}"
    serve = (
        "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind('\\0repairgym-neighbour'); s.listen(); "
        "open('/testbed/s', 'w').write(sys.argv[1]); open('/tmp/s', 'w').write(sys.argv[1]); time.sleep(60)"
    )
    async with site.sandbox() as first, site.sandbox() as second:
        running = asyncio.ensure_future(python(first, serve, secret, timeout_s=20))
        await asyncio.sleep(1)
        await _require_silence(second, program, secret)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


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
            await _require_silence(child, reached)
            await child.close()


async def control_groups(site: Site) -> None:
    """No other control group is in reach: neither their file system nor ``/sys`` is mounted."""
    async with site.sandbox() as sandbox:
        await _require_silence(sandbox, _GROUPS)


async def limits_stay(site: Site) -> None:
    """No limit can be raised from inside, and a child inherits all of them."""
    program = (
        "import resource\n"
        "for name in ('NPROC', 'FSIZE', 'NOFILE', 'CORE'):\n"
        "    kind = getattr(resource, 'RLIMIT_' + name)\n"
        "    soft, hard = resource.getrlimit(kind)\n"
        "    if hard == resource.RLIM_INFINITY: print('no limit', name)\n"
        "    try: resource.setrlimit(kind, (hard + 1, hard + 1))\n"
        "    except (OSError, ValueError): continue\n"
        "    print('raised', name)"
    )
    async with site.sandbox() as sandbox:
        await _require_silence(sandbox, program)


async def many_small_files(site: Site) -> None:
    """The number of files is bounded too, and the sandbox is usable after their removal."""
    program = (
        "import os\nos.mkdir('many')\ncount = 0\n"
        "try:\n    while count < 200000:\n        open('many/%d' % count, 'w').close(); count += 1\n"
        "except OSError as error: print(error.errno)"
    )
    async with site.sandbox(limits=SandboxLimits(disk_bytes=4 << 20)) as sandbox:
        result = await python(sandbox, program)
        require(result.stdout == b"28\n", "no space left", result)
        require((await shell(sandbox, "rm -r many; echo x > y; cat y")).stdout == b"x\n", "a usable sandbox", "none")


async def endless_output_of_many(site: Site) -> None:
    """``yes`` from many processes on both streams neither fills memory nor delays the deadline."""
    async with site.sandbox(limits=SandboxLimits(output_bytes=4096)) as sandbox:
        script = "for i in 1 2 3 4 5 6; do yes & yes >&2 & done; exec yes"
        result = await shell(sandbox, script, timeout_s=_SHORT_S)
        require(result.is_timed_out and result.is_truncated, "a cut at the deadline", result)
        require(result.num_stdout_bytes > 100_000 and len(result.stdout) < 5000, "a bounded output", len(result.stdout))
        require(result.duration_s < 30, "an end soon after the deadline", result.duration_s)
        require((await shell(sandbox, "echo fine")).stdout == b"fine\n", "a sandbox that works", "none")


async def process_bound_of_sessions(site: Site) -> None:
    """A fork bomb in a session ends with its command; the session continues."""
    async with site.sandbox(limits=SandboxLimits(num_processes=40)) as sandbox:
        session = await sandbox.open_session()
        result = await session.run("bomb() { bomb | bomb & }; bomb; sleep 30", timeout_s=_SHORT_S)
        require(result.exit_status != 0, "no success", result)
        result = await session.run("unset -f bomb; echo fine", timeout_s=60)
        require(result.stdout == b"fine\n", "a session that works", result)


async def environment_is_read_only(site: Site) -> None:
    """Interpreter, packages and tree of all sandboxes cannot be changed from one of them."""
    program = (
        "import os, pytest, sys\n"
        "guest = '/opt/repairgym/repairgym_guest/server.py'\n"
        "for path in (pytest.__file__, os.__file__, sys.executable, guest, '/usr/bin/env'):\n"
        "    for mode in ('r+b', 'ab'):\n"
        "        try: open(path, mode).close()\n"
        "        except OSError: continue\n"
        "        print('opened', path)\n"
        "    for call in (lambda: os.unlink(path), lambda: os.chmod(path, 0o777),\n"
        "                 lambda: os.rename(path, path + 'x')):\n"
        "        try: call()\n"
        "        except OSError: continue\n"
        "        print('changed', path)"
    )
    async with site.sandbox() as sandbox:
        await _require_silence(sandbox, program)


CHECKS = checks(
    host_processes_and_kernel,
    device_nodes,
    identities,
    tracing,
    socket_families,
    host_sockets,
    shared_memory,
    everybody_killed,
    other_sandboxes,
    control_groups,
    limits_stay,
    many_small_files,
    endless_output_of_many,
    process_bound_of_sessions,
    environment_is_read_only,
    is_isolating_only=True,
) + checks(poisoned_layers, is_isolating_only=True, needs_snapshots=True)
