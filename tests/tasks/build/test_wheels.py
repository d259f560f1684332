"""Wheels as untrusted bytes."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import stat
import sys
import zipfile

import pytest

from repairgym.tasks.build import wheels
from repairgym.tasks.build.wheels import Wheel, WheelError, read_wheel

NAME = "tiny-1.0-py3-none-any.whl"
INFO = "tiny-1.0.dist-info"
METADATA = b"Metadata-Version: 2.1\nName: tiny\n"
BUILT = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
FILES = {"tiny/__init__.py": b"X = 1\n", f"{INFO}/METADATA": METADATA, f"{INFO}/WHEEL": BUILT}


def record(files: dict[str, bytes], kind: str = "sha256") -> dict[str, bytes]:
    digests = {name: base64.urlsafe_b64encode(hashlib.new(kind, data).digest()) for name, data in files.items()}
    rows = [f"{name},{kind}={digest.decode().rstrip('=')},{len(files[name])}" for name, digest in digests.items()]
    return {f"{INFO}/RECORD": "\n".join([*rows, f"{INFO}/RECORD,,"]).encode()}


def pack(entries: list[tuple[str, bytes]], mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def made(files: dict[str, bytes]) -> bytes:
    return pack([*files.items(), *record(files).items()])


def test_a_good_wheel_is_read_and_packed_again() -> None:
    wheel = read_wheel(NAME, b"#!/bin/sh\n" + made(FILES))
    assert wheel.info == INFO
    assert dict(wheel.content) == {"tiny/__init__.py": b"X = 1\n"}
    assert wheel.metadata == METADATA
    packed = wheel.packed()
    assert packed.startswith(b"PK")
    assert read_wheel(NAME, packed) == wheel


@pytest.mark.parametrize("kind", ["sha384", "sha512"])
def test_longer_digests_are_known(kind: str) -> None:
    assert read_wheel(NAME, pack([*FILES.items(), *record(FILES, kind).items()])).info == INFO


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../../x", "a\\..\\x", "a//b", "./a", "tiny/__init__.py/x", "a" * 300]
)
def test_a_name_that_is_no_place_of_a_file_is_rejected(name: str) -> None:
    with pytest.raises(WheelError):
        read_wheel(NAME, made({**FILES, name: b"1"}))


@pytest.mark.parametrize("mode", [stat.S_IFLNK | 0o777, stat.S_IFIFO | 0o600, stat.S_IFCHR | 0o600])
def test_what_is_no_regular_file_is_rejected(mode: int) -> None:
    with pytest.raises(WheelError, match="expected files below"):
        read_wheel(NAME, pack([*FILES.items(), *record(FILES).items()], mode))


BETWEEN = pack([("tiny/__init__.py", b"import os\n")])
MISREAD = {
    "has Wheel-Version": {f"{INFO}/WHEEL": BUILT.replace(b"1.0", b"1.x")},
    "has Metadata-Version": {f"{INFO}/METADATA": METADATA.replace(b"2.1", b"2.x")},
    "says Name more than once": {f"{INFO}/METADATA": METADATA + b"Name: other\n"},
    "cannot lie next to": {"tiny/__INIT__.py": b""},
}


@pytest.mark.parametrize("why", MISREAD)
def test_what_installers_read_in_several_ways_is_rejected(why: str) -> None:
    with pytest.raises(WheelError, match=why):
        read_wheel(NAME, made({**FILES, **MISREAD[why]}))


def test_what_only_some_readers_of_archives_see_is_rejected() -> None:
    entries, listed = [*FILES.items()], record(FILES)[f"{INFO}/RECORD"]
    bad = {
        "another size": pack([*entries, (f"{INFO}/RECORD", listed.replace(b",6", b",7"))]),
        "cannot lie next to": pack([*entries, (f"{INFO}/RECORD", listed), ("tiny/__init__.py/", b"")]),
        "that are in no file": BETWEEN[: BETWEEN.index(b"PK\x01\x02")] + made(FILES),
    }
    for why, content in bad.items():
        with pytest.raises(WheelError, match=why):
            read_wheel(NAME, content)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_rejected(kind: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, data in {**FILES, **record(FILES)}.items():
            archive.writestr(name, data)
    with pytest.raises(WheelError, match="compression"):
        read_wheel(NAME, buffer.getvalue())


def test_a_file_that_is_there_twice_is_rejected() -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        content = pack([*FILES.items(), ("tiny/__init__.py", b"Y"), *record(FILES).items()])
    with pytest.raises(WheelError, match="twice"):
        read_wheel(NAME, content)


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({**FILES, "other-1.dist-info/METADATA": b""}, "2 .dist-info folders"),
        ({"tiny/__init__.py": b""}, "0 .dist-info folders"),
        ({name: data for name, data in FILES.items() if not name.endswith("WHEEL")}, "no WHEEL"),
        ({name: data for name, data in FILES.items() if not name.endswith("METADATA")}, "no METADATA"),
    ],
)
def test_metadata_is_there_once(files: dict[str, bytes], match: str) -> None:
    content = made(files) if len(files) > 1 else pack(list(files.items()))
    with pytest.raises(WheelError, match=match):
        read_wheel(NAME, content)


@pytest.mark.parametrize(
    "listed",
    [
        {**FILES, "tiny/more.py": b""},
        {name: data for name, data in FILES.items() if not name.endswith(".py")},
        {**FILES, "tiny/__init__.py": b"other"},
    ],
)
def test_the_record_must_say_what_is_there(listed: dict[str, bytes]) -> None:
    with pytest.raises(WheelError, match="RECORD"):
        read_wheel(NAME, pack([*FILES.items(), *record(listed).items()]))


def test_the_record_may_not_leave_out_digests() -> None:
    rows = "\n".join(f"{name},," for name in (*FILES, f"{INFO}/RECORD"))
    with pytest.raises(WheelError, match="another digest"):
        read_wheel(NAME, pack([*FILES.items(), (f"{INFO}/RECORD", rows.encode())]))


@pytest.mark.parametrize("content", [b"", b"PK", b"x" * 1000, made(FILES)[:-30], made(FILES)[200:]])
def test_bytes_that_are_no_archive_are_an_error_of_the_wheel(content: bytes) -> None:
    with pytest.raises(WheelError, match="cannot be read"):
        read_wheel(NAME, content)


def test_no_byte_flip_leads_anywhere_else() -> None:
    content = made(FILES)
    for place in range(len(content)):
        try:
            read_wheel(NAME, content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        except WheelError:
            continue


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("tiny.whl", "cannot be read"),
        ("../tiny-1.0-py3-none-any.whl", "cannot be read"),
        ("tiny-1.0-py3-none-any.zip", "cannot be read"),
        ("", "cannot be read"),
        ("tiny-1.0-cp27-cp27m-win32.whl", "for this Python"),
        ("small-1.0-py3-none-any.whl", "another project"),
        ("tiny-1.1-py3-none-any.whl", "another project or version"),
    ],
)
def test_the_file_name_fits_what_is_in_it(name: str, match: str) -> None:
    with pytest.raises(WheelError, match=match):
        read_wheel(name, made(FILES))


def test_sizes_are_bounded_before_anything_is_unpacked() -> None:
    # 60 MiB of zeros are 60 KiB: the archive itself is small.
    bomb = pack([("a.bin", bytes(30 << 20)), ("b.bin", bytes(30 << 20))])
    assert len(bomb) < 1 << 20
    with pytest.raises(WheelError, match=f"at most {wheels.MAX_CONTENT_BYTES} are read"):
        read_wheel(NAME, bomb)
    with pytest.raises(WheelError, match="more than 10000 files"):
        read_wheel(NAME, pack([(f"a/{number}", b"") for number in range(wheels.MAX_FILES + 1)]))
    with pytest.raises(WheelError, match="at most"):
        read_wheel(NAME, bytes(wheels.MAX_WHEEL_BYTES + 1))


RELEASED = ("tiny/__init__.py", "tiny/table.txt")


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("conftest.py", "start of an interpreter"),
        ("tiny/conftest.py", "start of an interpreter"),
        ("start.pth", "start of an interpreter"),
        ("tiny/sitecustomize.py", "start of an interpreter"),
        ("pytest.py", "next to the packages"),
        ("tests/data.txt", "next to the packages"),
        ("tiny/new.py", "no source"),
        ("tiny/new.so", "no source"),
    ],
)
def test_what_the_release_has_not_is_rejected_where_it_could_run(path: str, match: str) -> None:
    wheel = Wheel(NAME, INFO, {**FILES, path: b"import os\n"})
    with pytest.raises(WheelError, match=match):
        wheel.check_origin(RELEASED, lambda data: False)


def test_further_data_and_sources_of_the_project_may_be_in_the_wheel() -> None:
    files = {**FILES, "tiny/more.txt": b"1", "tiny/version.py": b"V = 1\n"}
    Wheel(NAME, INFO, files).check_origin(RELEASED, lambda data: data == b"V = 1\n")


def test_no_package_may_hide_a_released_module() -> None:
    wheel = Wheel(NAME, INFO, {**FILES, "tiny/core/__init__.py": b""})
    with pytest.raises(WheelError, match="hides a module"):
        wheel.check_origin(("tiny/__init__.py", "tiny/core.py"), lambda data: True)


def test_without_a_release_to_compare_every_module_is_a_source_of_the_project() -> None:
    wheel = Wheel(NAME, INFO, FILES)
    wheel.check_origin((), lambda data: data == b"X = 1\n")
    with pytest.raises(WheelError, match="no source"):
        wheel.check_origin((), lambda data: False)


THIS_PYTHON = f"cp{sys.version_info[0]}{sys.version_info[1]}"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("WHEEL", b"Wheel-Version: 9.0\nTag: py3-none-any\n"),
        ("WHEEL", b"Tag: py3-none-any\n"),
        ("WHEEL", b"Wheel-Version: 1.0\nTag: cp27-none-win32\n"),
        ("WHEEL", b"Wheel-Version: 1.0\n"),
        ("METADATA", b"Metadata-Version: 99.0\nName: tiny\n"),
        ("METADATA", b"Name: tiny\n"),
        ("METADATA", METADATA + b'Requires-Dist: furo; extra == "docs"\n'),
    ],
)
def test_what_no_installer_can_use_is_rejected(file: str, text: bytes) -> None:
    with pytest.raises(WheelError):
        read_wheel(NAME, made({**FILES, f"{INFO}/{file}": text}))


def test_extras_and_several_tags_are_known() -> None:
    told = METADATA + b'Provides-Extra: My.Docs\nRequires-Dist: furo; extra == "my-docs"\n'
    built = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py2-none-any\nTag: py3-none-any\n"
    files = {**FILES, f"{INFO}/METADATA": told, f"{INFO}/WHEEL": built}
    assert read_wheel("tiny-1.0-py2.py3-none-any.whl", made(files)).metadata == told


@pytest.mark.parametrize(("extra", "is_good"), [({}, False), ({"tiny/fast.so": b"\x7fELF"}, True)])
def test_only_compiled_files_bind_a_wheel_to_a_python(extra: dict[str, bytes], is_good: bool) -> None:
    built = f"Wheel-Version: 1.0\nTag: {THIS_PYTHON}-none-any\n".encode()
    content = made({**FILES, **extra, f"{INFO}/WHEEL": built})
    with contextlib.nullcontext() if is_good else pytest.raises(WheelError, match="nothing compiled"):
        assert read_wheel(f"tiny-1.0-{THIS_PYTHON}-none-any.whl", content).info == INFO


# --- sizes, and the same build twice ---


def of(files: dict[str, bytes]) -> Wheel:
    return read_wheel(NAME, made({**FILES, **files}))


def test_a_wheel_may_add_little_to_its_release() -> None:
    released = ("tiny/__init__.py",)
    of({"tiny/more.txt": b"1" * 1000, f"{INFO}/licenses/LICENSE": b"2" * 1000}).check_size(released)
    for files, told in (
        (
            {"tiny/more.bin": bytes(70_000)},
            r"holds 70\d+ bytes that the release does not have, expected 655\d+ at most",
        ),
        ({f"{INFO}/LICENSE": bytes(70_000)}, "bytes that the release does not have"),
        ({f"tiny/{number}.txt": b"" for number in range(20)}, "holds 23 files that the release does not have"),
    ):
        with pytest.raises(WheelError, match=told):
            of(files).check_size(released)
        of(files).check_size(())


def test_an_archive_is_no_larger_than_what_it_holds() -> None:
    buffer = io.BytesIO(made(FILES))
    with zipfile.ZipFile(buffer, "a") as archive:
        entry = zipfile.ZipInfo(f"{INFO}/x/")
        entry.extra = b"\xfe\xca" + (60_000).to_bytes(2, "little") + bytes(60_000)
        archive.writestr(entry, b"")
    with pytest.raises(WheelError, match="at most for what it holds"):
        read_wheel(NAME, buffer.getvalue())


def test_two_builds_agree_in_all_but_the_order_of_records() -> None:
    wheel, again = of({}), read_wheel(NAME, made(dict(reversed(FILES.items()))))
    assert wheel.files != again.files
    wheel.check_equal(again)
    with pytest.raises(WheelError, match=r"different files, first 'tiny/__init__\.py'"):
        wheel.check_equal(of({"tiny/__init__.py": b"X = 2\n"}))
    with pytest.raises(WheelError, match=r"different files, first 'tiny/x\.txt'"):
        wheel.check_equal(of({"tiny/x.txt": b""}))
    with pytest.raises(WheelError, match="another one 'tiny-1"):
        wheel.check_equal(read_wheel("tiny-1.0-1-py3-none-any.whl", made(FILES)))


def test_what_only_installers_write_and_platforms_that_contradict_are_rejected() -> None:
    with pytest.raises(WheelError, match="which installers write"):
        of({f"{INFO}/direct_url.json": b"{}"})
    with pytest.raises(WheelError, match="is not pure"):
        of({f"{INFO}/WHEEL": BUILT.replace(b"true", b"false")})
