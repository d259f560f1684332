"""Main errors of the logs that real tools wrote of broken projects, a third of which no reader was written with."""

import re
import runpy
from pathlib import Path

import pytest

from repairgym.tasks.logs.main_error import parse_main_error
from repairgym.tasks.logs.readers.registry import READERS

ACCURACY = runpy.run_path(str(Path(__file__).with_name("accuracy.py")))
judged, false_equalities, false_differences = (
    ACCURACY[name] for name in ("judged", "false_equalities", "false_differences")
)
MEASURES = ACCURACY["MEASURES"]
ROWS = list(ACCURACY["rows"]())
TOOLS = sorted({row["id"].split("/")[0] for row in ROWS})
MIN_LOGS, MIN_LOGS_PER_TOOL = 150, 10
MIN_RIGHT, MIN_PLACES = 0.95, 0.90


def shares(selected):
    results = [judged(row) for row in selected]
    both = sum(result["class"] and result["message"] for result in results) / len(results)
    return both, sum(result["place"] for result in results) / len(results)


def test_there_are_enough_logs():
    assert len(ROWS) >= MIN_LOGS
    assert all(sum(row["id"].startswith(f"{tool}/") for row in ROWS) >= MIN_LOGS_PER_TOOL for tool in TOOLS)


@pytest.mark.parametrize("is_holdout", [False, True])
def test_class_message_and_place_are_right(is_holdout):
    both, places = shares([row for row in ROWS if row["is_holdout"] == is_holdout])
    assert (both >= MIN_RIGHT, places >= MIN_PLACES) == (True, True), (both, places)


@pytest.mark.parametrize("tool", TOOLS)
def test_what_a_tool_says_is_read(tool):
    results = [judged(row) for row in ROWS if row["id"].startswith(f"{tool}/")]
    assert all(sum(result[name] for result in results) / len(results) >= 0.85 for name in MEASURES)


def test_different_errors_of_a_tool_are_different():
    assert false_equalities(ROWS) == []


def test_the_same_error_elsewhere_is_the_same():
    assert false_differences(ROWS) == []


def test_a_reader_is_chosen_by_its_own_logs():
    """A mark that matches everything would take logs of other tools away from their readers."""
    for reader in READERS:
        marked = {row["id"].split("/")[0] for row in ROWS if any(map(reader.mark.match, row["log"].splitlines()))}
        assert len(marked) <= 7, (reader.name, marked)


def log_of(name):
    return next(row["log"] for row in ROWS if row["id"] == name)


def test_the_deepest_cause_of_a_mixed_log_decides():
    npm = "\n> shop@1.0.0 build\n> tsc -p .\n\n{}\nnpm error Lifecycle script `build` failed:\nnpm error code 2\n"
    for name in ("javac/types", "node/type", "gradle/dependency", "cargo/types"):
        alone, mixed = parse_main_error(log_of(name)), parse_main_error(npm.format(log_of(name)))
        assert mixed == alone, name


def test_logs_are_neutral():
    for row in ROWS:
        assert not re.search(r"/tmp/|/root/|/work/", row["log"] + row.get("moved_log", "")), row["id"]
