"""Attacks on a verifier by an agent that does not solve its task, and the wrong variants of a solution.

Reads the image's files, the files that the solution changed and the verifier's scripts. Makes `Probe` records; none of
them knows the answer except the wrong variants, which spoil it. A reward for any of them is a defect.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from pathlib import PurePosixPath

from repairgym.diffs.lines import source_lines
from repairgym.tasks.audit.foreign.harbor_folder import HarborFolder
from repairgym.tasks.audit.foreign.place import MARKS, Probe
from repairgym.tasks.mutation.operators import FunctionSpan, Mutation, apply, find_functions, find_sites

Changes = Mapping[str, bytes | None]
FORGED = "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json"
_EXIT = {".py": "import os\nos._exit(0)\n", ".sh": "exit 0\n"}
_RAISE_EXIT = {".py": "raise SystemExit(0)\n", ".sh": "exit 0\n"}
_KILL = {".py": "import os\nos.kill(os.getppid(), 9)\n", ".sh": "kill -9 $PPID\n"}
_BREAK = {".py": "raise RuntimeError('broken on purpose')\n", ".sh": "exit 3\n"}
_SKIP = "import unittest\nraise unittest.SkipTest('skipped by the agent')\n"
_CONFTEST = f"""import pathlib, pytest
pathlib.Path("{MARKS}/conftest").touch()
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.skip(reason="skipped by the agent"))
"""
_SITE = "import os, sys\nif 'pip' not in sys.argv[0]:\n    os._exit(0)\n"
_HIJACK = {".py": "def test_nothing():\n    pass\n", ".sh": "exit 0\n"}
_MATCHED = re.compile(r"""grep\b[^|;]*?\s(["'])(.+?)\1|==\s*\*?(["'])([^"'*]{4,})\3\*?|=~\s*(\S+)""")
_NUM_VARIANTS = 8
_MIN_SURVIVORS = 3


def attacks(folder: HarborFolder, initial: Mapping[str, bytes], solved: Changes) -> list[Probe]:
    """Return the attacks without the forgers of rewards, each by the kind of defect that a reward proves."""
    code = [path for path, text in solved.items() if text is not None and _suffix(path, text)]
    texts = {path: _text(solved[path]) for path in code}
    where = folder.image.folder
    configured = {f"{place}/conftest.py": _CONFTEST for place in _test_folders(where, initial)}
    probes = [
        Probe("skips_rewarded", files=configured),
        Probe("early_exit_rewarded", files={f"{where}/sitecustomize.py": _SITE, f"{where}/usercustomize.py": _SITE}),
    ]
    for payload in (_EXIT, _RAISE_EXIT) if code else ():
        probes.append(Probe("early_exit_rewarded", files=_replaced(code, texts, payload)))
    python = [path for path in code if path.endswith(".py")]
    if python:
        probes.append(Probe("skips_rewarded", files=dict.fromkeys(python, _SKIP)))
        skipping = {path: skipping_functions(texts[path]) for path in python}
        probes.append(Probe("skips_rewarded", files={path: text for path, text in skipping.items() if text}))
    hijacked = _hijacked(folder, initial, solved)
    probes += [Probe(kind, files=files) for kind, files in hijacked.items()]
    printed = "\n".join(_matched_texts(folder))
    if printed and code:
        payload = {".py": f"import os\nprint({printed!r}, flush=True)\nos._exit(0)\n", ".sh": f"echo {printed!r}\n"}
        probes.append(Probe("reward_from_stdout", files=_replaced(code, texts, payload)))
    return probes


def forgeries(folder: HarborFolder, solved: Changes) -> list[Probe]:
    """Return the attacks that write the reward file first, and then stop the verifier in several ways."""
    texts = {path: _text(text) for path, text in solved.items() if text is not None}
    code = [path for path, text in texts.items() if _suffix(path, text.encode())]
    probes = [Probe("forged_reward", script=FORGED)]
    if code:
        probes += [
            Probe("stale_reward", files=_replaced(code, texts, payload), script=FORGED) for payload in (_BREAK, _KILL)
        ]
    else:
        paths = " ".join(f"'{path}'" for path in texts)
        probes.append(Probe("stale_reward", script=f"{FORGED}; rm -rf {paths}; mkdir -p {paths}"))
    return probes


def late_forgery() -> Probe:
    """Return the attack of a process that writes the reward again and again."""
    loop = f"end=$((SECONDS + 100)); while [ $SECONDS -lt $end ]; do {FORGED}; sleep 0.1; done"
    return Probe("shared_container", background=loop)


def _suffix(path: str, content: bytes) -> str:
    """Return ``.py`` or ``.sh`` for code in these languages; empty for data."""
    if path.endswith(".py") or content.startswith((b"#!/usr/bin/env python", b"#!/usr/bin/python")):
        return ".py"
    is_shell = path.endswith((".sh", ".bash")) or content.startswith(
        (b"#!/bin/bash", b"#!/bin/sh", b"#!/usr/bin/env bash")
    )
    return ".sh" if is_shell else ""


def _replaced(paths: list[str], texts: Mapping[str, str], payload: Mapping[str, str]) -> dict[str, str]:
    return {path: payload[_suffix(path, texts[path].encode())] for path in paths}


def _test_folders(where: str, initial: Mapping[str, bytes]) -> set[str]:
    """Return the working folder and the folders of tests below it."""
    parents = {
        str(parent) for path in initial for parent in PurePosixPath(path).parents if str(parent).startswith(where)
    }
    return {where.rstrip("/"), *(place for place in parents if PurePosixPath(place).name in ("test", "tests"))}


def _hijacked(folder: HarborFolder, initial: Mapping[str, bytes], solved: Changes) -> dict[str, dict[str, str]]:
    """Return replacements of the agent's programs that the verifier's scripts name, by the defect they would prove."""
    text = "\n".join(folder.scripts.values())
    replaced: dict[str, dict[str, str]] = {}
    for path, content in initial.items():
        pure, suffix = PurePosixPath(path), _suffix(path, content)
        names = [pure.name] if suffix else []
        is_test = bool(re.search(r"(?:^|[/_])tests?(?:[/_.]|$)", path))
        if suffix and is_test and pure.parent.name:
            names.append(f"{pure.parent.name}/")
        if pure.name in ("Makefile", "makefile") and re.search(r"\bmake\b", text):
            names, suffix = [pure.name], "make"
        if path in solved or not any(re.search(rf"(?<![\w]){re.escape(name)}", text) for name in (*names, path)):
            continue
        kind = "agent_writable_tests" if is_test else "verifier_runs_agent_code"
        stub = "%:\n\t@true\nall:\n\t@true\n" if suffix == "make" else _HIJACK.get(suffix, "")
        if stub:
            replaced.setdefault(kind, {})[path] = stub
    return replaced


def _matched_texts(folder: HarborFolder) -> list[str]:
    """Return the texts that shell scripts look for in an output."""
    scripts = [text for name, text in folder.scripts.items() if not name.endswith(".py")]
    matches = [match for text in scripts for line in text.splitlines() for match in _MATCHED.finditer(line)]
    return [text.strip("^$\"'") for match in matches if (text := match[2] or match[4] or match[5])]


# --- wrong variants --------------------------------------------------------------------------------------------------


def skipping_functions(text: str) -> str:
    """Return ``text`` with every function body a skip; empty without functions or when it does not parse."""
    return _with_bodies(text, "raise __import__('unittest').SkipTest('skipped')", _functions(text))


def wrong_variants(initial: Mapping[str, bytes], solved: Changes) -> Iterator[tuple[Probe, bool]]:
    """Yield spoiled solutions, and True for those that cannot be right: emptied functions, files without repair."""
    texts = {path: _text(text) for path, text in solved.items() if text is not None}
    if len(texts) > 1:
        for path in texts:
            yield _spoiled(f"{path} as it was", {path: _text(initial[path]) if path in initial else ""}), True
    for path, text in texts.items():
        before = _text(initial.get(path, b""))
        if path.endswith(".py"):
            for span in _changed_functions(before, text):
                emptied = _with_bodies(text, "return None", [span])
                if not _is_same_code(emptied, text):
                    yield _spoiled(f"{path}: {span.qualified_name} emptied", {path: emptied}), True
        for label, half in _halves(before, text):
            if not _is_same_code(half, text):
                yield _spoiled(f"{path}: {label}", {path: half}), False
        if path.endswith(".py"):
            yield from ((probe, False) for probe in _operators(path, before, text))


def _spoiled(name: str, files: Mapping[str, str]) -> Probe:
    return Probe(f"variant: {name}", files=files, is_solved=True)


def is_weak(rewarded_sure: list[str], rewarded_other: list[str], num_other: int) -> bool:
    """Return True when survivors prove a weak verifier; a few single-token ones may be equivalent to the solution."""
    return bool(rewarded_sure) or len(rewarded_other) >= max(_MIN_SURVIVORS, num_other // 3)


def _halves(before: str, after: str) -> Iterator[tuple[str, str]]:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    codes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changes = [(i, j, k, m) for tag, i, j, k, m in codes if tag != "equal"]
    if len(changes) > 1:
        for label, reverted in (
            ("first half", changes[: len(changes) // 2]),
            ("last half", changes[len(changes) // 2 :]),
        ):
            lines = list(new)
            for i, j, k, m in reversed(reverted):
                lines[k:m] = old[i:j]
            yield f"{label} of the hunks taken back", "".join(lines)
    elif not before and len(new) > 1:
        yield "only its first half", "".join(new[: len(new) // 2])


def _changed_functions(before: str, after: str) -> list[FunctionSpan]:
    """Return the functions of ``after`` whose lines differ from those of that name in ``before``."""
    old = {span.qualified_name: lines for span, lines in _functions(before).items()}
    return [span for span, lines in _functions(after).items() if old.get(span.qualified_name) != lines]


def _functions(text: str) -> dict[FunctionSpan, list[str]]:
    try:
        return {span: source_lines(text)[span.first_line - 1 : span.last_line] for span in find_functions(text)}
    except (SyntaxError, ValueError):
        return {}


def _with_bodies(text: str, statement: str, spans: Iterable[FunctionSpan]) -> str:
    """Return ``text`` with the bodies of the functions ``spans`` replaced by ``statement``; empty without any."""
    first_lines = {span.first_line for span in spans}
    if not first_lines:
        return ""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.lineno in first_lines:
            node.body = [ast.parse(f"def f():\n    {statement}\n").body[0].body[0]]  # type: ignore[attr-defined]
    return ast.unparse(tree) + "\n"


def _is_same_code(left: str, right: str) -> bool:
    try:
        return ast.dump(ast.parse(left)) == ast.dump(ast.parse(right))
    except (SyntaxError, ValueError):
        return left == right


def _operators(path: str, before: str, after: str) -> Iterator[Probe]:
    """Yield single-token mistakes in the functions that the solution changed."""
    spans = _changed_functions(before, after)
    sites = find_sites(after) if spans else []
    inner = [site for site in sites if any(span.first_line < site.line <= span.last_line for span in spans)]
    step = max(1, len(inner) // _NUM_VARIANTS)
    for site in inner[::step][:_NUM_VARIANTS]:
        text = apply(after, Mutation(site, site.alternatives[0]))
        yield _spoiled(f"{path}:{site.line} {site.old} -> {site.alternatives[0]}", {path: text})


def _text(content: bytes | None) -> str:
    return (content or b"").decode("utf-8", "replace")
