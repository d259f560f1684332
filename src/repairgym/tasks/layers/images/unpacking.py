"""The unpacking of one image layer into a folder that overlayfs takes as it is, by an ordinary user.

Reads a tar archive (plain, gzip or zstd) as a stream. Makes files, folders, links and hard links; an entry ``.wh.NAME``
becomes a whiteout, ``.wh..wh..opq`` an opaque folder. Guarantees: nothing is written outside of the folder, nor through
a link; everything belongs to the caller, who can read all of it; set-user-id, attributes and capabilities are dropped,
device nodes and pipes are skipped; a layer whose digests are not the expected ones is an `InputError`.

Symbolic links keep any destination: only the root of a sandbox resolves them, and no code of ours follows one.
"""

import errno
import gzip
import hashlib
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from repairgym.errors import ConfigError, InputError, install_hint

_WHITEOUT, _OPAQUE, _RESERVED = ".wh.", ".wh..wh..opq", ".wh..wh."
OPAQUE_ATTRIBUTE, _WHITEOUT_ATTRIBUTE = "user.overlay.opaque", "user.overlay.whiteout"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_CHUNK_BYTES = 1 << 20


class _Hashed:
    """A stream whose bytes are hashed and counted as they are read."""

    def __init__(self, stream: IO[bytes], max_bytes: int, note: Callable[[int], None] = lambda _: None) -> None:
        self._stream, self._max_bytes, self._note = stream, max_bytes, note
        self._hash = hashlib.sha256()
        self._num_bytes = 0

    def read(self, size: int = -1) -> bytes:
        """Read at most ``size`` bytes."""
        data = self._stream.read(size)
        self._hash.update(data)
        self._num_bytes += len(data)
        self._note(len(data))
        if self._num_bytes > self._max_bytes:
            raise InputError(f"has more than {self._max_bytes} bytes, the bound of layers.max_bytes")
        return data

    def finish(self) -> str:
        """Read to the end; return the digest in hexadecimal digits."""
        while self.read(_CHUNK_BYTES):
            pass
        return self._hash.hexdigest()


def unpack_layer(
    stream: IO[bytes], place: Path, diff_id: str, blob: str, max_bytes: int, note: Callable[[int], None]
) -> None:
    """Unpack ``stream`` into the empty folder ``place``; ``note`` is told each number of bytes read.

    ``diff_id`` (hex) is the digest of the tar archive and ``blob`` that of ``stream`` as it is, empty if unknown.
    """
    raw = _Hashed(stream, max_bytes, note)
    try:
        unpacked = _Hashed(_decompressed(raw, stream), max_bytes)
        layer = _Layer(place, max_bytes)
        with tarfile.open(fileobj=cast("IO[bytes]", unpacked), mode="r|") as tar:
            while (member := tar.next()) is not None:
                layer.add(tar, member)
                # Not needed again; a large layer has a million.
                cast(Any, tar).members.clear()
        got = unpacked.finish(), raw.finish()
    except ConfigError:
        raise
    except (tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise InputError(f"layer {diff_id[:12]} cannot be unpacked: {error}") from error
    except OSError as error:
        raise _explain(error, diff_id) from error
    for what, digest, expected in (("content", got[0], diff_id), ("blob", got[1], blob)):
        if expected and digest != expected:
            raise InputError(f"layer {diff_id[:12]}: its {what} has the digest {digest}, expected {expected}")


def _explain(error: OSError, diff_id: str) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error
    if error.errno == errno.EOPNOTSUPP:
        return InputError("the layer store lies on a file system without user attributes; move it: REPAIRGYM_CACHE")
    if error.errno in (None, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL):
        return InputError(f"layer {diff_id[:12]} cannot be unpacked: {error}")
    return error


def _decompressed(raw: _Hashed, stream: IO[bytes]) -> IO[bytes]:
    start = stream.peek(4)[:4] if hasattr(stream, "peek") else b""
    if start.startswith(_GZIP):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=cast("IO[bytes]", raw), mode="rb"))
    if start == _ZSTD:
        try:
            import zstandard
        except ImportError as error:
            raise ConfigError(f"a layer is compressed with zstd; {install_hint('images')}") from error
        return cast(
            "IO[bytes]", _Zstd(zstandard.ZstdDecompressor().stream_reader(cast(Any, raw), read_across_frames=True))
        )
    return cast("IO[bytes]", raw)


class _Zstd:
    """A zstd stream whose errors are those of a broken archive."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        """Read at most ``size`` bytes."""
        import zstandard

        try:
            return bytes(self._stream.read(size))
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error


class _Layer:
    """The folder of one layer while its entries come in."""

    def __init__(self, place: Path, max_bytes: int) -> None:
        self._place, self._room = str(place), max_bytes
        self._folders = {self._place}
        """Real folders, which no link leads through."""

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Make the entry ``member``; a later entry replaces an earlier one of its name."""
        parts = _parts(member.name)
        if not parts:
            return
        parent, name = self._folder(parts[:-1]), parts[-1]
        target = f"{parent}/{name}"
        if name == _OPAQUE:
            os.setxattr(parent, OPAQUE_ATTRIBUTE, b"y")
        elif name.startswith(_WHITEOUT):
            if not name.startswith(_RESERVED):
                self._hide(parent, _parts(name.removeprefix(_WHITEOUT)))
        elif member.isdir():
            os.chmod(self._folder(parts, may_replace=True), member.mode & 0o1777 | 0o700)
        elif member.issym():
            self._clear(target)
            os.symlink(member.linkname, target)
        elif member.islnk():
            self._link(member, target)
        elif member.isfile():
            # Sparse files are larger than their part of the archive.
            self._room -= member.size
            if self._room < 0:
                raise InputError(f"{member.name!r} has {member.size} bytes, beyond the bound of layers.max_bytes")
            self._clear(target)
            _write(tar, member, target)

    def _folder(self, parts: list[str], *, may_replace: bool = False) -> str:
        """Return the folder ``parts``, made where it is missing; ``may_replace``: also in the place of a file."""
        path = self._place
        for index, part in enumerate(parts):
            path = f"{path}/{part}"
            if path in self._folders:
                continue
            is_replaced = may_replace and index + 1 == len(parts)
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                os.mkdir(path, 0o755)
            else:
                is_hidden = is_whiteout(path, mode)
                if not is_replaced and not is_hidden and not stat.S_ISDIR(mode):
                    raise InputError(f"an entry leads through {'/'.join(parts[: index + 1])!r}, which is no folder")
                if not stat.S_ISDIR(mode):
                    os.unlink(path)
                    os.mkdir(path, 0o755)
                if is_hidden:
                    os.setxattr(path, OPAQUE_ATTRIBUTE, b"y")
            self._folders.add(path)
        return path

    def _hide(self, parent: str, names: list[str]) -> None:
        """Make a whiteout; what this layer itself has of that name stays."""
        if len(names) != 1:
            raise InputError(f"got a whiteout of {names}, expected one name")
        target = f"{parent}/{names[0]}"
        if os.path.lexists(target):
            if os.path.isdir(target) and not os.path.islink(target):
                os.setxattr(target, OPAQUE_ATTRIBUTE, b"y")
            return
        try:
            os.mknod(target, stat.S_IFCHR | 0o600, 0)
        except PermissionError:
            # Some containers and network file systems deny even this device; Linux 6.7 reads the other form.
            Path(target).touch(0o600)
            os.setxattr(target, _WHITEOUT_ATTRIBUTE, b"y")
            if get_attribute(parent, OPAQUE_ATTRIBUTE) != b"y":
                os.setxattr(parent, OPAQUE_ATTRIBUTE, b"x")

    def _link(self, member: tarfile.TarInfo, target: str) -> None:
        parts = _parts(member.linkname)
        source = f"{self._folder(parts[:-1])}/{parts[-1]}" if parts else self._place
        if not os.path.lexists(source) or stat.S_ISDIR(os.lstat(source).st_mode):
            raise InputError(f"{member.name!r} is a hard link to {member.linkname!r}, which is no file of its layer")
        if source != target:
            self._clear(target)
            os.link(source, target, follow_symlinks=False)

    def _clear(self, target: str) -> None:
        with suppress(FileNotFoundError):
            if stat.S_ISDIR(os.lstat(target).st_mode):
                shutil.rmtree(target)
                self._folders = {path for path in self._folders if not f"{path}/".startswith(f"{target}/")}
            else:
                os.unlink(target)


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise InputError(f"got an entry {name!r}, expected a path below the layer")
    return parts


def get_attribute(path: str, name: str) -> bytes:
    """Return an extended attribute of ``path`` itself; empty without it."""
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError:
        return b""


def is_whiteout(path: str, mode: int) -> bool:
    """Return True when ``path``, of ``mode``, hides what lower layers have of its name."""
    return stat.S_ISCHR(mode) or (stat.S_ISREG(mode) and get_attribute(path, _WHITEOUT_ATTRIBUTE) != b"")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: str) -> None:
    reader = tar.extractfile(member)
    assert reader is not None
    with open(target, "xb") as file:
        shutil.copyfileobj(reader, file, _CHUNK_BYTES)
        os.fchmod(file.fileno(), member.mode & 0o777 | 0o400)
    # Compiled Python names the time of its source.
    with suppress(OSError, OverflowError, ValueError):
        os.utime(target, (member.mtime, member.mtime))
