"""A corpus of releases on a static index: resumed, without copies, reverts and held-out texts."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from tests.pretraining.test_changes import BEFORE

from repairgym.config.commands import ChangesConfig
from repairgym.config.loading import load_config
from repairgym.errors import InputError
from repairgym.pretraining.change_corpus import collect_changes
from repairgym.pretraining.changes import FunctionChange
from repairgym.pretraining.corpus import function_digest
from repairgym.pretraining.held_out import held_out_names
from repairgym.tasks.layers.package_index import sha256_of

FIXED = BEFORE.replace("> 1", "> 0")
RELEASES = {"1.0": BEFORE, "1.1": FIXED, "1.2": BEFORE, "1.10": BEFORE.replace("[:n]", "[:n + 1]")}
"""A fix, its revert, and another change in the version that text order would put second."""


def write_sdist(folder: Path, name: str, files: dict[str, str]) -> str:
    """Write ``name.tar.gz``; return its link."""
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            member = tarfile.TarInfo(f"{name}/{file}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return f'<a href="{path.name}#sha256={sha256_of(path)}">{path.name}</a>'


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A static index (PEP 503) with a project ``shelf``, named in the environment."""
    folder = tmp_path / "simple" / "shelf"
    folder.mkdir(parents=True)
    links = [
        write_sdist(
            folder,
            f"shelf-{version}",
            dict.fromkeys(("shelf/basket.py", "tests/test_basket.py", "shelf/copy.py"), text),
        )
        for version, text in RELEASES.items()
    ]
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "simple").as_uri())
    monkeypatch.setenv("REPAIRGYM_CACHE", str(tmp_path / "cache"))
    return folder


def rows(path: Path) -> list[FunctionChange]:
    return [FunctionChange.model_validate_json(line) for line in path.read_text().splitlines()]


def config(**settings: object) -> ChangesConfig:
    return ChangesConfig.model_validate({"packages": ("shelf",), "num_workers": 1, **settings})


def test_a_corpus_has_each_change_once_and_a_manifest(tmp_path: Path, index: Path):
    out = tmp_path / "changes.jsonl"
    counts = collect_changes(config(packages=("shelf", "absent")), out, frozenset())
    versions = [(row.name, row.path, row.version_before, row.version_after) for row in rows(out)]
    assert versions == [("Box.take", "shelf/basket.py", "1.2", "1.10"), ("first", "shelf/basket.py", "1.0", "1.1")]
    assert (counts.num_changes, counts.num_packages, list(counts.failed)) == (2, 1, ["absent"])
    manifest = json.loads((tmp_path / "changes.manifest.json").read_text())
    assert manifest["changes"] == {"shelf 1.2..1.10": 1, "shelf 1.0..1.1": 1}
    assert {"jinja2", "semver", "django"} <= set(manifest["held_out"]["names"])
    assert not (tmp_path / "changes.jsonl.parts").exists()


def test_only_the_newest_releases_are_compared(tmp_path: Path, index: Path):
    collect_changes(config(num_releases=2), out := tmp_path / "changes.jsonl", frozenset())
    assert [row.name for row in rows(out)] == ["Box.take"]
    with pytest.raises(InputError, match="fewer than two releases"):
        collect_changes(config(max_archive_mib=1e-5), out, frozenset())


def test_a_function_of_a_held_out_package_is_left_out_whatever_its_layout(tmp_path: Path, index: Path):
    vendored = "def first(items):\n  if len(items)>0:\n    return items[0]\n  return None"
    collect_changes(config(), out := tmp_path / "changes.jsonl", frozenset({function_digest(vendored.splitlines())}))
    assert [row.name for row in rows(out)] == ["Box.take"]


def test_finished_packages_are_not_compared_again(tmp_path: Path, index: Path):
    out = tmp_path / "changes.jsonl"
    out.mkdir()  # the command stops before its end
    with pytest.raises(IsADirectoryError):
        collect_changes(config(), out, frozenset())
    (part,) = (tmp_path / "changes.jsonl.parts").iterdir()
    part.write_bytes(part.read_bytes().splitlines(keepends=True)[0])
    out.rmdir()
    assert collect_changes(config(), out, frozenset()).num_changes == 1


@pytest.mark.parametrize("name", ["semver", "python-semver", "Django", "flask_login", "jinja"])
def test_a_held_out_package_is_an_error(tmp_path: Path, name: str):
    with pytest.raises(InputError, match=name):
        collect_changes(config(packages=(name,)), tmp_path / "out.jsonl", frozenset())


def test_the_preset_names_no_held_out_package():
    preset = Path(__file__).parents[2] / "src/repairgym/data/presets/changes.toml"
    names = load_config(ChangesConfig, [preset]).packages
    assert len(names) > 30
    assert not held_out_names() & set(names)
