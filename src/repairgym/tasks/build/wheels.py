"""Wheels that code of a submission built: read as data, checked as an installer would, and packed again.

Reads the bytes of one file. Makes a `Wheel`. Guarantees: nothing of it runs; time and memory are bounded; every name
leads to a regular file below the place of installation; ``RECORD`` lists exactly the files that are there; `packed` is
an archive that holds nothing but those files.
"""

import base64
import csv
import email
import hashlib
import io
import re
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from packaging.tags import Tag, parse_tag, sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from repairgym.sandbox.base import can_be_path

MAX_WHEEL_BYTES = 32 << 20
MAX_CONTENT_BYTES = 48 << 20
"""Below the bound on one file of a sandbox, which the packed wheel must meet."""
MAX_FILES = 10_000
_MORE_BYTES, _MORE_FILES = 64 << 10, 16
"""Metadata and own additions, besides half of what the release holds."""
_ENTRY_BYTES = 1024
"""Room for the headers and the names of an entry of the archive."""
_METADATA, _WHEEL, _RECORD = "METADATA", "WHEEL", "RECORD"
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_BY_INSTALLERS = ("INSTALLER", "REQUESTED", "direct_url.json")
_DIGESTS = ("sha256", "sha384", "sha512")
_COMPILED_SUFFIXES = (".so", ".pyd")
_CODE_SUFFIXES = (".py", ".pyc", *_COMPILED_SUFFIXES)
_MAX_DESCRIPTOR_BYTES = 24
"""Size and checksum of an entry may follow it; a further entry takes 30 bytes at least."""
_LENGTHS_OFFSET = 26
"""Place of the lengths of name and extra field in the 30 bytes before an entry."""
_ONE_TIME_FIELDS = ("Metadata-Version", "Name", "Version", "Requires-Python", "Wheel-Version", "Root-Is-Purelib")
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)""")
_START_UP_NAMES = ("conftest.py", "sitecustomize.py", "usercustomize.py")


class WheelError(ValueError):
    """A build that ended without a wheel, or whose wheel no installer should take."""


@dataclass(frozen=True)
class Wheel:
    """A wheel that an installer can take."""

    name: str
    """File name."""
    info: str
    """Its ``.dist-info`` folder."""
    files: Mapping[str, bytes]
    """Path -> content."""

    @property
    def content(self) -> Iterator[tuple[str, bytes]]:
        """Path and content of each file outside of the ``.dist-info`` folder."""
        return ((name, data) for name, data in self.files.items() if not name.startswith(f"{self.info}/"))

    @property
    def metadata(self) -> bytes:
        """The file that says name, version and dependencies."""
        return self.files[f"{self.info}/{_METADATA}"]

    def packed(self) -> bytes:
        """Return an archive of `files` that this process made: no link, no other entry and no odd header is in it."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in self.files.items():
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    def check_origin(self, released: Collection[str], is_source: Callable[[bytes], bool]) -> None:
        """Check the files that are not ``released`` under their name: all files where nothing is released.

        Raises:
            WheelError: one would run at the start of an interpreter or a test run, lies next to the project's own
                packages, hides a module, or is code without a source in the project (`is_source`): nobody has read it.
        """
        tops = {name.partition("/")[0] for name in released}
        for name, data in self.content:
            if name in released:
                continue
            file = name.rpartition("/")[2].lower()  # where names are read without regard to case, it is the same file
            if file in _START_UP_NAMES or file.endswith(".pth"):
                raise WheelError(f"the wheel holds {name}, which would run at the start of an interpreter or of tests")
            if tops and name.partition("/")[0] not in tops:
                raise WheelError(f"the wheel holds {name} next to the packages of the release")
            if file.endswith(_CODE_SUFFIXES) and not is_source(data):
                raise WheelError(f"the wheel holds {name}, which is no source of the project")
            if name.removesuffix("/__init__.py") + ".py" in released:
                raise WheelError(f"the wheel holds {name}, which hides a module of the release")

    def check_size(self, released: Collection[str]) -> None:
        """Check that what the wheel adds to the ``released`` files is small next to them.

        Raises:
            WheelError: with the numbers.
        """
        if not released:
            return  # the absolute bounds remain
        own = [len(data) for name, data in self.files.items() if name in released]
        more = [len(data) for name, data in self.files.items() if name not in released]
        for got, most, what in (
            (sum(more), sum(own) // 2 + _MORE_BYTES, "bytes"),
            (len(more), len(own) // 2 + _MORE_FILES, "files"),
        ):
            if got > most:
                raise WheelError(
                    f"the wheel holds {got} {what} that the release does not have, expected {most} at most"
                )

    def check_equal(self, other: "Wheel") -> None:
        """Check that ``other``, the same build by another front end, is the same wheel.

        Raises:
            WheelError: file name, names or content differ; the order of ``RECORD`` may.
        """
        if self.name != other.name:
            raise WheelError(f"one front end built {self.name[:80]!r}, another one {other.name[:80]!r}")
        record = f"{self.info}/{_RECORD}"
        names = self.files.keys() | other.files.keys()
        wrong = sorted(name for name in names - {record} if self.files.get(name) != other.files.get(name))
        if wrong:
            raise WheelError(f"two front ends built wheels with different files, first {wrong[0][:80]!r}")


def read_wheel(name: str, content: bytes) -> Wheel:
    """Return the wheel ``content`` with the file name ``name``; WheelError if no installer should take it."""
    if len(content) > MAX_WHEEL_BYTES:
        raise WheelError(f"the wheel has {len(content)} bytes, at most {MAX_WHEEL_BYTES} are read")
    try:
        files = _read_files(content)
        infos = {name.partition("/")[0] for name in files if name.partition("/")[0].endswith(".dist-info")}
        if len(infos) != 1:
            raise WheelError(f"the wheel has {len(infos)} .dist-info folders, expected one")
        wheel = Wheel(name, infos.pop(), files)
        _check_record(wheel)
        _check_name(wheel)
        _check_heads(wheel)
    except WheelError:
        raise
    except Exception as error:  # the readers raise many kinds on bytes that somebody made up
        raise WheelError(f"the wheel cannot be read: {type(error).__name__}: {error}") from error
    return wheel


def _read_files(content: bytes) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    if content.count(b"PK\x01\x02") > MAX_FILES:  # before the reader makes an object of each
        raise WheelError(f"the wheel holds more than {MAX_FILES} files")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        # Nothing is read beyond the size that an entry declares.
        num_bytes = sum(entry.file_size for entry in archive.infolist())
        if num_bytes > MAX_CONTENT_BYTES:
            raise WheelError(f"the wheel holds {num_bytes} bytes, at most {MAX_CONTENT_BYTES} are read")
        if len(content) > (most := num_bytes + _ENTRY_BYTES * (1 + len(archive.infolist()))):
            raise WheelError(f"the wheel has {len(content)} bytes, expected {most} at most for what it holds")
        for entry in archive.infolist():
            name = entry.filename
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if not can_be_path(name) or "\\" in name or kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise WheelError(f"the wheel holds {name[:80]!r}, expected files below the place of installation")
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise WheelError(f"the wheel holds {name[:80]!r} in a compression that installers need not know")
            if name in files:
                raise WheelError(f"the wheel holds {name[:80]!r} twice")
            if not entry.is_dir():
                files[name] = archive.read(entry)
        _check_layout(archive, content)
        folders = {entry.filename.rstrip("/") for entry in archive.infolist() if entry.is_dir()}
    folded = Counter(name.casefold() for name in files)
    for name in files:
        is_twin = name in folders or folded[name.casefold()] > 1
        parents = PurePosixPath(name).parents
        if is_twin or name != PurePosixPath(name).as_posix() or any(str(path) in files for path in parents):
            raise WheelError(f"the wheel holds {name[:80]!r}, which cannot lie next to its other files")
    return files


def _check_layout(archive: zipfile.ZipFile, content: bytes) -> None:
    """Check that nothing lies between the entries: installers that read entry by entry would find a file there."""
    end = 0
    for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
        if not 0 <= entry.header_offset - end <= _MAX_DESCRIPTOR_BYTES:
            raise WheelError(f"the wheel holds bytes before {entry.filename[:80]!r} that are in no file")
        lengths = struct.unpack_from("<HH", content, entry.header_offset + _LENGTHS_OFFSET)
        end = entry.header_offset + _LENGTHS_OFFSET + 4 + sum(lengths) + entry.compress_size
    if not 0 <= archive.start_dir - end <= _MAX_DESCRIPTOR_BYTES:
        raise WheelError("the wheel holds bytes after its last file that are in no file")


def _check_name(wheel: Wheel) -> None:
    """Check that the file name fits this Python, what the wheel holds, and the ``.dist-info`` folder."""
    project, version, _, tags = parse_wheel_filename(wheel.name)
    if tags.isdisjoint(sys_tags()):
        raise WheelError(f"{wheel.name[:80]!r} is no wheel for this Python")
    is_compiled = any(name.endswith(_COMPILED_SUFFIXES) for name in wheel.files)
    if not is_compiled and Tag("py3", "none", "any") not in tags:
        raise WheelError(f"{wheel.name[:80]!r} holds nothing compiled, expected one for every Python 3")
    named, _, number = wheel.info.removesuffix(".dist-info").rpartition("-")
    if canonicalize_name(named) != project or Version(number) != version:
        raise WheelError(f"{wheel.name[:80]!r} holds {wheel.info[:80]!r}, which is another project or version")


def _check_heads(wheel: Wheel) -> None:
    """Check what an installer reads first: versions of the formats, the tags again, and the extras."""
    built = email.message_from_bytes(wheel.files[f"{wheel.info}/{_WHEEL}"])
    told = email.message_from_bytes(wheel.metadata)
    for head, field, known in ((built, "Wheel-Version", r"1\.\d+"), (told, "Metadata-Version", r"[12]\.\d+")):
        if not re.fullmatch(known, str(head[field])):
            raise WheelError(f"the wheel has {field} {str(head[field])[:20]!r}, which no installer knows")
    for head, field in ((head, field) for head in (built, told) for field in _ONE_TIME_FIELDS):
        if len(head.get_all(field, [])) > 1:
            raise WheelError(f"the wheel says {field} more than once, and installers differ about which one counts")
    tags = frozenset(tag for text in built.get_all("Tag", []) for tag in parse_tag(str(text)))
    if tags != parse_wheel_filename(wheel.name)[3]:
        raise WheelError(f"the tags in {_WHEEL} are not those of {wheel.name[:80]!r}")
    if Tag("py3", "none", "any") in tags and str(built["Root-Is-Purelib"]).lower() != "true":
        raise WheelError("the wheel is for every platform and says that it is not pure")
    provided = {canonicalize_name(str(name)) for name in told.get_all("Provides-Extra", [])}
    named = {name for text in told.get_all("Requires-Dist", []) for name in _EXTRA.findall(str(text))}
    if missing := {canonicalize_name(name) for name in named} - provided:
        raise WheelError(f"the wheel requires something for the extra {min(missing)[:40]!r}, which it does not provide")


def _check_record(wheel: Wheel) -> None:
    """Check that every file has its digest in ``RECORD``, and that nothing else is listed."""
    places = {file: f"{wheel.info}/{file}" for file in (_METADATA, _WHEEL, _RECORD)}
    for file, place in places.items():
        if place not in wheel.files:
            raise WheelError(f"the wheel has no {file}")
    if written := [file for file in _BY_INSTALLERS if f"{wheel.info}/{file}" in wheel.files]:
        raise WheelError(f"the wheel holds {written[0]}, which installers write")
    rows = csv.reader(io.StringIO(wheel.files[places[_RECORD]].decode(), newline=""))
    listed = {row[0]: (row[1], row[2]) for row in rows if row}
    unlisted = {places[_RECORD], *(f"{wheel.info}/{file}" for file in _SIGNATURES)}
    if wrong := (wheel.files.keys() ^ listed.keys()) - unlisted:
        raise WheelError(f"RECORD and the files of the wheel differ: {min(wrong)[:80]!r}")
    for name in listed.keys() - unlisted:
        (kind, _, digest), size = listed[name][0].partition("="), listed[name][1]
        if kind not in _DIGESTS or digest != _digest(kind, wheel.files[name]):
            raise WheelError(f"RECORD has another digest of {name[:80]!r}")
        if size not in ("", str(len(wheel.files[name]))):
            raise WheelError(f"RECORD has another size of {name[:80]!r}")


def _digest(kind: str, data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.new(kind, data).digest()).rstrip(b"=").decode()
