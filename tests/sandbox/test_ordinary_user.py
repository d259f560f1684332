"""The conformance suite again, as a user without any privilege."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ORDINARY_ID = 54321
ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
# A mount namespace in which the interpreter, its packages and this checkout are readable by everybody, wherever they
# lie: the closed folder above each one is covered, and what is needed is shown again in it.
_SCRIPT = """
set -e
mount --make-rprivate /
kept=/mnt
mount -t tmpfs -o mode=755 none "$kept"
for name in $FOLDERS; do
    mkdir -p "$kept/$name" && mount --rbind "$name" "$kept/$name"
done
for name in $CLOSED; do
    mount -t tmpfs -o mode=755 none "$name"
done
for name in $FOLDERS; do
    if [ ! -e "$name" ]; then mkdir -p "$name" && mount --rbind "$kept/$name" "$name"; fi
done
exec setpriv --reuid "$ORDINARY" --regid "$ORDINARY" --clear-groups -- "$@"
"""


def closed_folders(folders):
    """The topmost folder above each of ``folders`` that others may not enter."""
    topmost = set()
    for folder in map(Path, folders):
        closed = [parent for parent in (*reversed(folder.parents), folder) if not parent.stat().st_mode & 0o001]
        topmost.update(map(str, closed[:1]))
    return sorted(topmost)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("namespace", "test_conformance.py"),
        ("bubblewrap", "test_conformance.py"),
        ("degraded", "test_conformance.py"),
        ("over_an_image", "test_image_conformance.py"),
    ],
)
def test_conformance_as_an_ordinary_user(name, file):
    folders = sorted({sys.base_prefix, str(Path(sys.prefix).resolve()), str(ROOT)})
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", name]
    tests += ["-m", "slow or not slow", str(FOLDER / file)]
    with tempfile.TemporaryDirectory(prefix="repairgym-ordinary-") as home:
        os.chown(home, ORDINARY_ID, ORDINARY_ID)
        environment = {
            **os.environ,
            "FOLDERS": " ".join(folders),
            "CLOSED": " ".join(closed_folders(folders)),
            "ORDINARY": str(ORDINARY_ID),
            "HOME": home,
            "TMPDIR": home,
            "USER": "ordinary",
            "LOGNAME": "ordinary",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = ["unshare", "--mount", "bash", "-c", _SCRIPT, "bash", *tests]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert "does not work here" not in done.stdout, done.stdout[-2000:]
