"""Catalogue entries as text: TOML with a comment per guess.

Reads a `Package` or `Repository` record and reasons. Makes text that `load_catalogue` reads. Guarantees: what is added
to a catalogue leaves the rest of the file as it was; the whole file is checked before it is replaced; of commands that
add at the same time, one waits for the other.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from repairgym.errors import InputError
from repairgym.tasks.layers.atomic_write import written_whole
from repairgym.tasks.layers.catalogue import Catalogue, NpmPackage, NpmRepository, Package, Repository, load_catalogue

_WIDTH = 116


def render_entry(
    project: Package | Repository, comments: Mapping[str, str], problems: Sequence[str], command: str
) -> str:
    """Return the entry of ``project``; ``comments`` stand above their fields, ``problems`` at the top."""
    kinds = {NpmPackage: "npm", NpmRepository: "npm_repository", Repository: "repository"}
    kind = kinds.get(type(project), "package")
    lines = [
        f"# {project.name}: written by `{command}`. A comment says why its field was guessed so; correct what is wrong."
    ]
    if problems:
        lines += ["# Not done:", *(f"#   {_one_line(problem)}" for problem in problems)]
    lines.append(f"[[{kind}]]")
    defaults = {name: info.default for name, info in type(project).model_fields.items() if not info.is_required()}
    values = project.model_dump(mode="json")
    for name, value in values.items():
        if name in ("sdists", "removals") or (
            name not in comments and name in defaults and value == _plain(defaults[name])
        ):
            continue
        if name in comments:
            lines.append(f"# {name}: {_one_line(comments[name])}")
        lines.append(f"{name} = {_toml(value)}")
    if isinstance(project, Package):
        lines += [f"[{kind}.sdists]", *(f'"{version}" = "{digest}"' for version, digest in project.sdists.items())]
        for removal in values.get("removals", ()):
            lines += [f"[[{kind}.removals]]", *(f"{name} = {_toml(value)}" for name, value in removal.items())]
    return "\n".join(lines) + "\n"


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _one_line(text: str) -> str:
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def _toml(value: object) -> str:
    if isinstance(value, list) and len(json.dumps(value)) > _WIDTH:
        return "[\n" + "".join(f"    {json.dumps(item, ensure_ascii=False)},\n" for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def check_is_new(path: Path, name: str, kind: str) -> None:
    """Raise InputError if the catalogue in ``path`` cannot be read, or has a ``kind`` of this name already."""
    if not path.exists():
        return
    catalogue = load_catalogue(path)
    packages = catalogue.npm if kind == "npm" else catalogue.package
    repositories = (*catalogue.repository, *catalogue.npm_repository)
    listed: Sequence[Package | Repository] = repositories if kind == "repository" else packages
    if any(project.name == name for project in listed):
        raise InputError(
            f"{path} has a {kind} {name} already; remove that entry, or name another file with --catalogue"
        )


def add_entry(path: Path, text: str) -> Catalogue:
    """Add the entry ``text`` to the catalogue in ``path`` (a missing file is made); InputError if it does not fit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    with _alone(draft):
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        draft.write_text(f"{before.rstrip()}\n\n{text}".lstrip(), encoding="utf-8")
        try:
            catalogue = load_catalogue(draft)
        except InputError as error:
            raise InputError(str(error).replace(str(draft), str(path))) from error
        with written_whole(path) as file:
            file.write(draft.read_bytes())
    return catalogue


@contextmanager
def _alone(draft: Path) -> Iterator[None]:
    """Wait until no other command has ``draft``, hold it, and remove it at the end."""
    while True:
        with draft.open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            # The one who held it before has removed it.
            if not (draft.exists() and os.path.samestat(os.fstat(stream.fileno()), draft.stat())):
                continue
            try:
                yield
            finally:
                draft.unlink()
            return
