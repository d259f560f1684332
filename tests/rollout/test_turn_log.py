"""The log of turns in flight: what was written is read back, wherever the file is cut off, by the same episode only."""

from pathlib import Path

import pytest

from repairgym.agent.recording import Outcome, SampledAction
from repairgym.agent.tools.base import Observation
from repairgym.inference.base import Generation
from repairgym.rollout.turn_log import EpisodeLog, TurnLog

ENTRIES = (
    SampledAction(
        prompt="00",
        generation=Generation(
            token_ids=(1, 2), log_probs=(-0.1, -1e-30), is_stopped=True, policy_version=3, token_versions=(3, 4)
        ),
    ),
    Outcome(
        state="ab",
        observation=Observation(text="half of a pair: \ud83d\n", error="tool"),
        is_tested=True,
        generate_s=0.1,
        tool_s=0.2,
    ),
)


def written(folder: Path) -> Path:
    with TurnLog(folder).open("rl/0/a#1", "origin") as log:
        for entry in ENTRIES:
            log.write(entry)
    (path,) = folder.iterdir()
    return path


def test_entries_are_read_back_by_the_same_episode_only(tmp_path):
    written(tmp_path)
    with TurnLog(tmp_path).open("rl/0/a#1", "origin") as log:
        assert tuple(log.entries) == ENTRIES
    with TurnLog(tmp_path).open("rl/0/a#2", "origin") as other:
        assert other.entries == []
    with TurnLog(tmp_path).open("rl/0/a#1", "another policy") as other:
        assert (other.entries, other.num_dropped) == ([], 2)
    with TurnLog(tmp_path).open("rl/0/a#1", "origin") as log:
        assert log.entries == []  # the other one has taken the file


def test_a_file_that_is_cut_off_anywhere_keeps_its_whole_lines_and_takes_more(tmp_path):
    path = written(tmp_path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with EpisodeLog(path, "origin") as log:
            num = len(log.entries)
            assert tuple(log.entries) == ENTRIES[:num]
            log.write(ENTRIES[num])
        with EpisodeLog(path, "origin") as log:
            assert tuple(log.entries) == ENTRIES[: num + 1]
    assert num == 1


@pytest.mark.parametrize("tail", [b"\0" * 100, b"deadbeef {}\n", b"\n", b"garbage"])
def test_what_follows_a_damaged_line_is_not_read(tmp_path, tail):
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + tail)
    with EpisodeLog(path, "origin") as log:
        assert tuple(log.entries) == ENTRIES


def test_stored_episodes_are_forgotten(tmp_path):
    log = TurnLog(tmp_path / "turns")
    log.forget(["a"])  # nothing is there yet
    for name in ("a", "b"):
        log.open(name, "").write(ENTRIES[0])
    log.forget(["a", "unknown"])
    with log.open("a", "") as one, log.open("b", "") as other:
        assert (len(one.entries), len(other.entries)) == (0, 1)


def test_without_a_file_entries_stay_in_memory():
    with EpisodeLog() as log:
        log.write(ENTRIES[0])
        assert log.entries == [ENTRIES[0]]
        log.restart()
        assert log.entries == []
