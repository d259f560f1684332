"""Accuracy of main errors on the logs of broken projects.

Usage: python tests/tasks/logs/accuracy.py [TOOL ...] [--holdout] [--wrong]
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

from repairgym.records import MainError
from repairgym.tasks.logs.main_error import is_same_error, parse_main_error

FIXTURES = Path(__file__).parent / "fixtures"
MEASURES = ("class", "message", "place")


def rows(tools: Iterable[str] = ()) -> Iterator[dict]:
    """Yield the fixtures of ``tools`` (default: all)."""
    for path in sorted(FIXTURES.glob("*.jsonl")):
        if not tools or path.stem in tools:
            yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def judged(row: dict) -> dict[str, bool]:
    """Return what of the main error of ``row`` is right."""
    error = parse_main_error(row["log"])
    words = " ".join(row["message"].split())
    return {
        "class": error.error_class == row["error_class"],
        "message": words in " ".join(error.message.split()),
        "place": is_place(error, row["place"]),
    }


def is_place(error: MainError, place: str) -> bool:
    """Return True when ``error`` is at ``place``; without a line in ``place`` any line is right."""
    file, _, line = place.partition(":")
    path = error.path.partition("::")[0]
    is_file = path == "" if not file else path == file or path.endswith(f"/{file}")
    return is_file and (not line or str(error.line) == line)


def false_equalities(selected: list[dict]) -> list[tuple[str, str]]:
    """Return the pairs of different errors of one tool that count as the same."""
    errors = [(row["id"], parse_main_error(row["log"])) for row in selected]
    return [
        (a, b)
        for (a, left), (b, right) in combinations(errors, 2)
        if a.split("/")[0] == b.split("/")[0] and is_same_error(left, right)
    ]


def false_differences(selected: list[dict]) -> list[str]:
    """Return the fixtures whose error differs from the same project's in another folder, a line further down."""
    return [
        row["id"]
        for row in selected
        if "moved_log" in row and not is_same_error(parse_main_error(row["log"]), parse_main_error(row["moved_log"]))
    ]


def main() -> None:
    """Print the accuracy of each tool; with ``--wrong`` also what was read wrongly outside of the holdout set."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tools", nargs="*")
    parser.add_argument("--holdout", action="store_true")
    parser.add_argument("--wrong", action="store_true")
    arguments = parser.parse_args()
    selected = [row for row in rows(arguments.tools) if row["is_holdout"] == arguments.holdout]
    for tool in sorted({row["id"].split("/")[0] for row in selected}):
        own = [judged(row) for row in selected if row["id"].split("/")[0] == tool]
        print(f"{tool:10} {len(own):3}", *(f"{name} {sum(each[name] for each in own):3}" for name in MEASURES))
    results = [judged(row) for row in selected]
    print("all", len(results), *(f"{name} {sum(r[name] for r in results) / len(results):.1%}" for name in MEASURES))
    both = sum(r["class"] and r["message"] for r in results)
    print(f"class and message {both / len(results):.1%}")
    print("counted as the same:", false_equalities(selected))
    print("counted as different:", false_differences(selected))
    for row, result in zip(selected, results, strict=True):
        if arguments.wrong and not arguments.holdout and not all(result.values()):
            wrong = [name for name in MEASURES if not result[name]]
            print(row["id"], wrong, "expected", row["error_class"], row["message"], row["place"])
            print("   ", parse_main_error(row["log"]))


if __name__ == "__main__":
    main()
