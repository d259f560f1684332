from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.tasks.layers.metadata import license_of

METADATA = ".dist/a-1.dist-info/METADATA"


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        ({METADATA: "Name: a\nLicense-Expression: MIT\n", "LICENSE": "Apache\n"}, "MIT"),
        ({METADATA: "Name: a\nLicense: UNKNOWN\nClassifier: License :: OSI Approved :: BSD License\n"}, "BSD License"),
        ({METADATA: "Name: a\nClassifier: License :: OSI Approved :: BSD License\n"}, "BSD License"),
        ({METADATA: "Name: a\n", "pyproject.toml": '[project]\nlicense = "ISC"\n'}, "ISC"),
        ({"package.json": '{"license": "MIT"}', "LICENSE": "The text\n"}, "MIT"),
        ({"package.json": '{"license": "SEE LICENSE IN LICENSE"}', "LICENSE": "The text\n"}, "The text"),
        ({"pyproject.toml": '[project]\nlicense = {text = "Zlib"}\n'}, "Zlib"),
        ({"pyproject.toml": "broken [", "LICENCE.txt": "\n  The MIT License\nmore\n"}, "The MIT License"),
        ({"a.py": ""}, ""),
    ],
)
def test_the_licence_is_what_the_tree_says(tmp_path: Path, files: dict[str, str], licence: str) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert license_of(tmp_path) == licence
