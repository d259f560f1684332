"""Leftovers of processes that are gone are swept, those of others never."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from repairgym.sandbox.backends.stale_cleanup import OWNER_FILE, Owner, make_folder, remove_tree, sweep_folders


@pytest.fixture
def own(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Owner.of_this_process()


def ended_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_this_process_is_alive(own):
    assert not own.is_gone()
    assert Owner.parse(str(own)) == own


@pytest.mark.parametrize("text", ["", "notes", "a:b", "boot:1:2", "boot:1:2:x", "boot:1:2:3:4"])
def test_other_texts_are_not_owners(text):
    assert Owner.parse(text) is None


def test_dead_processes_are_gone(own):
    assert own._replace(pid=ended_pid()).is_gone()
    assert own._replace(start_ticks=own.start_ticks + 1).is_gone(), "the number was given to another process"
    assert own._replace(boot_id="another").is_gone()
    assert not own._replace(pid_namespace=1, pid=ended_pid()).is_gone(), "cannot be seen from here"
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert own._replace(pid=zombie.pid).is_gone()
    zombie.wait()


def test_sweep(own, tmp_path):
    kept, other_kind, gone = make_folder("test"), make_folder("other"), make_folder("test")
    for folder in (other_kind, gone):
        (folder / OWNER_FILE).write_text(str(own._replace(pid=ended_pid())))
    (gone / "content").write_text("x")
    stranger = tmp_path / "repairgym-test-stranger"
    stranger.mkdir()
    assert sweep_folders("test") == [gone]
    assert not gone.exists()
    assert all(folder.is_dir() for folder in (kept, other_kind, stranger))


def test_a_sweep_follows_no_link(own, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / OWNER_FILE).write_text(str(own._replace(boot_id="another")))
    (tmp_path / "repairgym-test-link").symlink_to(elsewhere)
    assert sweep_folders("test") == []
    assert (elsewhere / OWNER_FILE).exists()


def test_a_sweep_removes_trees_of_any_depth(own):
    gone = make_folder("test")
    (gone / OWNER_FILE).write_text(str(own._replace(boot_id="another")))
    folder = os.open(gone, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    assert sweep_folders("test") == [gone]
    assert not gone.exists()


def make_and_remove():
    """Make a folder without permissions that is not empty, and a link to a folder elsewhere; remove it all."""
    folder, elsewhere = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    (folder / "outer" / "locked").mkdir(parents=True)
    (folder / "outer" / "locked" / "file").write_text("x")
    (folder / "outer" / "link").symlink_to(elsewhere)
    elsewhere.chmod(0o755)
    (folder / "outer" / "locked").chmod(0)
    (folder / "outer").chmod(0)
    remove_tree(folder)
    is_kept = elsewhere.stat().st_mode & 0o777 == 0o755
    elsewhere.rmdir()
    return not folder.exists() and is_kept


def test_folders_without_permissions_are_removed():
    pid = os.fork()
    if pid == 0:  # root could remove them anyway
        status = 1
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            status = int(not make_and_remove())
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
