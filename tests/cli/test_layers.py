"""`repairgym layers`: a pulled image, and commands in it."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repairgym.cli.main import create_app
from repairgym.sandbox.conformance.host_image import find_libraries
from repairgym.testing.image_archives import entry, folder, layer, write_saved


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("REPAIRGYM_CACHE", str(tmp_path / "store"))

    def invoke(*arguments):
        return CliRunner().invoke(create_app(), ["layers", *arguments])

    return invoke


@pytest.fixture
def shell_archive(tmp_path):
    """An image with a shell and nothing else, which sets a variable and a working folder."""
    sh = Path(shutil.which("sh"))
    files = [entry("bin/sh", sh.read_bytes(), mode=0o755)]
    files += [entry(str(path)[1:], path.read_bytes(), mode=0o755) for path in sorted(find_libraries([sh]))]
    settings = {"Env": ["WORD=from the image", "PATH=/bin"], "WorkingDir": "/srv"}
    return write_saved(tmp_path / "shell.tar", [layer(*files), layer(folder("srv"))], config=settings)


def test_a_command_runs_in_a_pulled_image(run, shell_archive, tmp_path):
    pulled = run("pull", str(shell_archive))
    assert pulled.exit_code == 0, pulled.output
    name, image_id = str(shell_archive), pulled.stdout.split()[0]
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("of the tree\n")
    script = 'echo "$WORD"; pwd; read line < /testbed/file; echo "$line"; echo x > /testbed/file; echo e >&2; exit 3'
    done = run("run", image_id[:12], "--tree", str(tmp_path / "tree"), "--", "sh", "-c", script)
    assert (done.exit_code, done.stdout, done.stderr) == (3, "from the image\n/srv\nof the tree\n", "e\n")
    assert (tmp_path / "tree/file").read_text() == "of the tree\n"
    assert run("run", name, "--", "no-such-program").exit_code == 127
    assert run("run", name, "--timeout", "0.2", "--", "sh", "-c", "while :; do :; done").exit_code == 124


def test_an_image_that_is_not_here_is_one_sentence(run):
    done = run("run", "registry.example/none", "--", "true")
    assert done.exit_code != 0
    assert "run 'repairgym layers pull' first" in done.output
