"""Pulls from a registry, archives and layout folders: sharing, resumption, and one sentence for each failure."""

import gzip
import io
import json
import tarfile

import pytest

from repairgym.config.sandbox import LayersConfig
from repairgym.errors import DiskFullError, IndexUnavailableError, InputError, RegistryUnavailableError
from repairgym.tasks.layers.gc import collect, let_go, list_layers
from repairgym.tasks.layers.images.manifests import this_platform
from repairgym.tasks.layers.images.pull import pull
from repairgym.tasks.layers.images.reference import parse_reference
from repairgym.tasks.layers.images.registry import Registry
from repairgym.tasks.layers.inventory import find_damage
from repairgym.tasks.layers.store import LayerStore
from repairgym.testing.image_archives import archive, entry, layer, write_layout, write_saved
from repairgym.testing.registry import FakeRegistry, digest

AMD64 = "linux/amd64"
BASE = layer(entry("etc/base", b"base" * 1000), entry("usr/bin/tool", b"tool", mode=0o755))
FIRST = layer(entry("testbed/first", b"1"), entry("etc/.wh.base"))
SECOND = layer(entry("testbed/second", b"2"))


@pytest.fixture
def store(tmp_path):
    return LayerStore(tmp_path / "store", config=LayersConfig())


@pytest.fixture
def serve():
    """Starts a fake registry; gives the host of its images."""
    with_servers = []

    def start(registry):
        server = registry.in_thread()
        url = server.__enter__()
        with_servers.append(server)
        return url.removeprefix("http://").removesuffix("/v1")

    yield start
    for server in with_servers:
        server.__exit__(None, None, None)


def names_below(pulled):
    return sorted(
        path.relative_to(one.path).as_posix() for one in pulled.layers for path in one.path.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("has_tokens", [False, True])
def test_a_sibling_image_moves_only_its_own_layers(store, serve, has_tokens):
    registry = FakeRegistry(has_tokens=has_tokens)
    registry.add("team/one", "latest", [BASE, FIRST], config={"Env": ["PATH=/bin", "A=b=c"], "WorkingDir": "/testbed"})
    registry.add("team/two", "v2", [BASE, SECOND])
    host = serve(registry)
    one = pull(store, f"{host}/team/one", platform=AMD64)
    assert names_below(one) == ["etc/base", "testbed/first", "usr/bin/tool"]
    assert (one.image.variables, one.image.working_folder) == ({"PATH": "/bin", "A": "b=c"}, "/testbed")
    assert one.num_bytes_moved == len(BASE[0]) + len(FIRST[0])
    two = pull(store, f"{host}/team/two:v2", platform=AMD64)
    assert [made.is_new for made in two.layers] == [False, True]
    assert two.num_bytes_moved == len(SECOND[0])
    assert registry.num_bytes_sent[f"team/two/blobs/{digest(BASE[0])}"] == 0
    assert two.layers[0].path == one.layers[0].path
    assert [find_damage(made.path) for made in one.layers] == [(), ()]
    again = pull(store, f"{host}/team/one", platform=AMD64)
    assert (again.num_bytes_moved, again.image) == (0, one.image)


def test_a_broken_transfer_continues_where_it_ended(store, serve):
    content = archive(entry("big", bytes(range(256)) * 4000))
    registry = FakeRegistry(break_after=300_000)
    registry.add("a", "latest", [(content, content)])
    pulled = pull(store, f"{serve(registry)}/a", platform=AMD64)
    assert (pulled.layers[0].path / "big").stat().st_size == 1_024_000
    assert registry.num_bytes_sent[f"a/blobs/{digest(content)}"] == len(content)
    assert list((store.root / "image_layers").glob(".*.part")) == []


def test_another_process_continues_what_one_left(store, serve):
    registry = FakeRegistry()
    registry.add("a", "latest", [BASE])
    part = store.root / "image_layers" / f".{digest(BASE[0])[7:]}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(BASE[0][:40])
    pull(store, f"{serve(registry)}/a", platform=AMD64)
    assert registry.num_bytes_sent[f"a/blobs/{digest(BASE[0])}"] == len(BASE[0]) - 40


def test_a_wrong_beginning_is_noticed_and_not_kept(store, serve):
    registry = FakeRegistry()
    registry.add("a", "latest", [BASE])
    text = f"{serve(registry)}/a"
    part = store.root / "image_layers" / f".{digest(BASE[0])[7:]}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"z" * 40)
    with pytest.raises(InputError, match="layer"):
        pull(store, text, platform=AMD64)
    assert list_layers(store.root) == []
    assert not part.exists()
    assert names_below(pull(store, text, platform=AMD64)) == ["etc/base", "usr/bin/tool"]


def test_a_blob_with_another_digest_leaves_no_layer(store, serve):
    registry = FakeRegistry()
    registry.add("a", "latest", [BASE])
    other = gzip.compress(archive(entry("evil", b"x" * 9)))
    registry.documents[f"a/blobs/{digest(BASE[0])}"] = other.ljust(len(BASE[0]), b"\0")
    with pytest.raises(InputError, match="has the digest"):
        pull(store, f"{serve(registry)}/a", platform=AMD64)
    assert list_layers(store.root) == []


def test_a_document_with_another_digest_is_refused(store, serve):
    registry = FakeRegistry()
    wanted = registry.add("a", "latest", [BASE])
    registry.documents[f"a/manifests/{wanted}"] = b'{"config": {}}'
    with pytest.raises(InputError, match=r"the manifest of .* has the digest"):
        pull(store, f"{serve(registry)}/a@{wanted}", platform=AMD64)


def test_the_platform_is_chosen_from_a_list(store, serve):
    registry, entries = FakeRegistry(), []
    for architecture, made in (("arm64", FIRST), ("amd64", SECOND)):
        manifest = registry.add("a", architecture, [made], architecture=architecture)
        size = len(registry.documents[f"a/manifests/{manifest}"])
        entries.append({"digest": manifest, "size": size, "platform": {"os": "linux", "architecture": architecture}})
    registry.add_manifest("a", "latest", {"manifests": entries})
    host = serve(registry)
    assert names_below(pull(store, f"{host}/a", platform=AMD64)) == ["testbed/second"]
    assert pull(store, f"{host}/a", platform="linux/arm64").image.platform == "linux/arm64"
    with pytest.raises(InputError, match=r"no image for linux/s390x, only for linux/arm64, linux/amd64"):
        pull(store, f"{host}/a", platform="linux/s390x")
    with pytest.raises(InputError, match=r"is an image for linux/arm64, not for linux/amd64"):
        pull(store, f"{host}/a:arm64", platform=AMD64)
    assert this_platform().startswith("linux/")


@pytest.mark.parametrize("write", [write_layout, write_saved])
def test_files_and_folders(store, tmp_path, write):
    pulled = pull(store, str(write(tmp_path / "image", [BASE, FIRST])), platform=AMD64)
    assert names_below(pulled) == ["etc/base", "testbed/first", "usr/bin/tool"]
    assert not (tmp_path / "image").is_dir() or pulled.num_bytes_moved == len(BASE[0]) + len(FIRST[0])


def test_an_archive_of_a_layout(store, tmp_path):
    place = write_layout(tmp_path / "image", [BASE, FIRST])
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        tar.add(place, ".", recursive=False)
        for path in sorted(place.rglob("*")):
            tar.add(path, path.relative_to(place), recursive=False)
    assert len(pull(store, str(tmp_path / "image.tar"), platform=AMD64).layers) == 2


def test_a_layout_may_not_name_files_outside(store, tmp_path):
    place = write_layout(tmp_path / "image", [BASE])
    blob = place / "blobs" / "sha256" / digest(BASE[0])[7:]
    blob.rename(tmp_path / "outside")
    blob.symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="lies outside"):
        pull(store, str(place), platform=AMD64)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.write_bytes(b"no tar"), "no archive of an image"),
        (lambda path: path.write_bytes(archive(entry("x", b"1"))), "it has no manifest.json"),
        (lambda path: path.write_bytes(archive(entry("manifest.json", b"[]"))), "does not hold exactly one image"),
        (lambda path: path.write_bytes(archive(entry("manifest.json", b"{"))), "does not hold exactly one image"),
        (lambda path: path.write_bytes(archive(entry("index.json", b'{"a": 1}'))), "does not read"),
        (lambda path: path.write_bytes(archive(entry("index.json", b'{"manifests": []}'))), "has no image for"),
        (lambda path: write_saved(path, []), "names 0"),
    ],
)
def test_broken_archives_are_one_sentence(store, tmp_path, make, reason):
    make(tmp_path / "image.tar")
    with pytest.raises(InputError, match=reason):
        pull(store, str(tmp_path / "image.tar"), platform=AMD64)


def test_unusable_registries_are_one_sentence(store, serve, monkeypatch):
    registry = FakeRegistry()
    host = serve(registry)
    with pytest.raises(RegistryUnavailableError, match=f"the registry {host} has no image {host}/nothing"):
        pull(store, f"{host}/nothing")
    with pytest.raises(InputError, match="expected HOST/NAME:TAG"):
        pull(store, "python:3.12")
    offline = LayerStore(store.root, config=LayersConfig(is_index_allowed=False))
    with pytest.raises(IndexUnavailableError, match="forbids to fetch"):
        pull(offline, f"{host}/a")
    waits = []
    nobody = Registry(parse_reference("127.0.0.1:9/a"), sleep=waits.append)
    with pytest.raises(RegistryUnavailableError, match=r"127\.0\.0\.1:9 does not answer"):
        nobody.document("manifests", "latest")
    assert waits == [0.5, 2.0, 6.0]


class Refusing(FakeRegistry):
    async def answer(self, request, writer):
        writer.write(b"HTTP/1.1 401 .\r\nContent-Length: 0\r\n\r\n")
        return True


def test_a_registry_that_refuses(store, serve):
    with pytest.raises(RegistryUnavailableError, match=r"rejects the request for a \(401\); check the name, or log in"):
        pull(store, f"{serve(Refusing())}/a")


def test_credentials_of_other_programs_are_used(store, serve, tmp_path, monkeypatch):
    class Private(FakeRegistry):
        async def answer(self, request, writer):
            if "Basic dTpw" in request.head:
                return await super().answer(request, writer)
            writer.write(b'HTTP/1.1 401 .\r\nWWW-Authenticate: Basic realm="x"\r\nContent-Length: 0\r\n\r\n')
            return True

    registry = Private()
    registry.add("a", "latest", [BASE])
    host = serve(registry)
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {host: {"auth": "dTpw"}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    assert len(pull(store, f"{host}/a", platform=AMD64).layers) == 1


def test_a_full_disk_leaves_nothing_half(store, serve, tmp_path):
    registry = FakeRegistry()
    registry.add("a", "latest", [BASE])
    text = f"{serve(registry)}/a"
    (tmp_path / "store").mkdir()
    # The device of Linux that is always full.
    (store.root / "image_layers").mkdir()
    part = store.root / "image_layers" / f".{digest(BASE[0])[7:]}.part"
    part.symlink_to("/dev/full")
    with pytest.raises(DiskFullError):
        pull(store, text, platform=AMD64)
    assert list_layers(store.root) == []
    part.unlink()
    assert len(pull(store, text, platform=AMD64).layers) == 1


def test_layers_and_images_are_collected_like_others(store, tmp_path):
    pulled = pull(store, str(write_saved(tmp_path / "image.tar", [BASE, FIRST])), platform=AMD64)
    everything = LayersConfig(max_bytes=1, min_idle_s=0)
    assert collect(store.root, everything).num_in_use == 3
    for kept in list_layers(store.root):
        let_go(kept.path)
    assert len(collect(store.root, everything).removed) == 3
    assert not pulled.layers[0].path.exists()


def test_progress_names_the_time_left(store, serve):
    content = archive(entry("big", io.BytesIO(bytes(4 << 20)).getvalue()))
    registry, seen = FakeRegistry(), []
    registry.add("a", "latest", [(content, content)])
    pull(store, f"{serve(registry)}/a", platform=AMD64, progress=lambda *step: seen.append(step))
    assert all(phase == "layers" and total == 4 for phase, _, total, _ in seen)
    assert "s left" in seen[0][3]
    assert seen[-1][1:] == (4, 4, "MiB")
