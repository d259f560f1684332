"""Pulls from the registry of Debian's package docker-registry, started here."""

import json
import shutil
import socket
import subprocess
import time

import httpx2
import pytest
import zstandard

from repairgym.tasks.layers.images.pull import pull
from repairgym.tasks.layers.store import LayerStore
from repairgym.testing.image_archives import archive, entry, image_config, layer
from repairgym.testing.registry import digest

pytestmark = pytest.mark.container
_CONFIG = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
log: {{level: error}}
"""


@pytest.fixture
def registry(tmp_path):
    """Starts the registry; gives its address."""
    program = shutil.which("docker-registry") or pytest.skip("docker-registry is not installed: make tools")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "config.yml").write_text(_CONFIG.format(root=tmp_path / "registry", port=port))
    process = subprocess.Popen([program, "serve", str(tmp_path / "config.yml")], stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def push(address, name, layers):
    base = f"http://{address}/v2/{name}"
    config = image_config(layers)
    with httpx2.Client() as client:
        for blob in (config, *(blob for blob, _ in layers)):
            place = client.post(f"{base}/blobs/uploads/").headers["location"]
            answer = client.put(f"{place}&digest={digest(blob)}", content=blob)
            assert answer.status_code == 201
        kind = "application/vnd.oci.image.{}.v1+json"
        entries = [{"mediaType": kind.format("layer"), "digest": digest(b), "size": len(b)} for b, _ in layers]
        top = {"mediaType": kind.format("config"), "digest": digest(config), "size": len(config)}
        manifest = {"schemaVersion": 2, "mediaType": kind.format("manifest"), "config": top, "layers": entries}
        headers = {"Content-Type": manifest["mediaType"]}
        answer = client.put(f"{base}/manifests/latest", content=json.dumps(manifest).encode(), headers=headers)
        assert answer.status_code == 201, answer.text


def test_two_images_of_a_real_registry_share_a_layer(registry, tmp_path):
    zeros = archive(entry("usr/big", bytes(3 << 20)))
    base, own = (zstandard.compress(zeros), zeros), layer(entry("testbed/a", b"a"))
    push(registry, "team/one", [base, own])
    push(registry, "team/two", [base, layer(entry("testbed/b", b"b"))])
    store = LayerStore(tmp_path / "store")
    one = pull(store, f"{registry}/team/one", platform="linux/amd64")
    assert one.num_bytes_moved == len(base[0]) + len(own[0])
    two = pull(store, f"{registry}/team/two:latest", platform="linux/amd64")
    assert [made.is_new for made in two.layers] == [False, True]
    assert (two.layers[1].path / "testbed/b").read_bytes() == b"b"
