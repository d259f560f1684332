"""The search for older versions, on projects that are told by what breaks beside which versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from packaging.version import Version

from repairgym.config.tasks import VersionSearchConfig
from repairgym.tasks.layers.requirement_pins import Place
from repairgym.tasks.sources.build_checks import WHEEL_TEST
from repairgym.tasks.sources.version_search import Bound, Failures, Pin, Pins, Versions, VersionSearch

LEFT, RIGHT, OTHER = "suite[left.py]", "suite[right.py]", "suite[other.py]"
MADE = {
    "docs": ["5.1", "5.0", "4.2", "4.1", "4.0", "3.0", "2.0", "1.0"],
    "marks": [f"{major}.{minor}" for major in (3, 2, 1, 0) for minor in range(9, -1, -1)],
    "alone": ["1.0"],
}


@dataclass
class Project:
    """What a project requires, and what fails beside which versions."""

    breaks: Callable[[dict[str, Version]], Failures]
    released_versions: dict[str, list[str]] = field(default_factory=lambda: MADE)
    asked: list[dict[str, str]] = field(default_factory=list)
    """Versions of each run."""
    then: Versions = field(default_factory=dict)
    """Versions of the project's time."""
    lacking: dict[Pin, Bound] = field(default_factory=dict)
    """Versions known to lack names."""

    def known(self) -> dict[Pin, Bound]:
        return self.lacking

    @property
    def newest(self) -> Versions:
        return {name: versions[0] for name, versions in self.released_versions.items()}

    def suspects(self, place: Place, told: str) -> list[str]:
        return sorted(self.newest, key=lambda name: name not in told)

    def released(self, name: str) -> Sequence[str]:
        return self.released_versions[name]

    def older_versions(self, pins: Pins) -> Versions:
        return {pin.name: version for pin, version in pins.items()}

    def own_time(self, place: Place) -> Pins:
        return {Pin(place, name): version for name, version in self.then.items()}

    async def failures(self, pins: Pins, older: Versions, among: Failures) -> Failures | None:
        versions = {**self.newest, **older}
        assert versions not in self.asked
        self.asked.append(versions)
        found = self.breaks({name: Version(version) for name, version in versions.items()})
        return found if among is not None else None

    async def search(self, **bounds: int) -> dict[Pin, Bound]:
        first = self.breaks({name: Version(version) for name, version in self.newest.items()})
        search = VersionSearch(self, first, VersionSearchConfig(**bounds))
        found = await search.find()
        assert search.num_runs == len(self.asked)
        return found


def runtime(name: str) -> Pin:
    return Pin("runtime", name)


def hidden_culprit(at: dict[str, Version]) -> Failures:
    """One test file that imports both; the second is reached only when the first can be imported."""
    if at["docs"] >= Version("4.1"):
        return {LEFT: "cannot import name 'ErrorString' from 'docs'"}
    return {LEFT: "module 'marks' has no attribute 'Block' (0x7f3a)"} if at["marks"] >= Version("1.3") else {}


@pytest.mark.asyncio
async def test_a_culprit_behind_another_is_found() -> None:
    project = Project(hidden_culprit)
    assert await project.search() == {runtime("docs"): Bound("4.0", "4.1"), runtime("marks"): Bound("1.2", "1.3")}
    # 40 versions of one and 8 of the other: steps that grow and halving ask about few of them.
    assert len(project.asked) <= 20


@pytest.mark.asyncio
async def test_the_versions_next_to_the_border_are_taken_and_not_too_old_ones() -> None:
    def breaks(at: dict[str, Version]) -> Failures:
        found = {LEFT: "'marks' is too new"} if at["marks"] >= Version("1.5") else {}
        return found | ({OTHER: "'marks' is too old"} if at["marks"] < Version("1.3") else {})

    # A step of the search jumps over the versions that work: from 2.1 to 1.2.
    assert await Project(breaks).search() == {runtime("marks"): Bound("1.4", "1.5")}


@pytest.mark.asyncio
async def test_a_pin_that_is_not_needed_goes() -> None:
    def breaks(at: dict[str, Version]) -> Failures:
        if at["docs"] >= Version("5.0") and at["marks"] >= Version("3.0"):
            return {LEFT: "'docs' is here, 'marks' is there"}
        return {LEFT: "'marks' is to blame"} if at["marks"] >= Version("3.0") else {}

    assert await Project(breaks).search() == {runtime("marks"): Bound("2.9", "3.0")}


@pytest.mark.asyncio
async def test_what_only_some_pins_repair_is_kept() -> None:
    def breaks(at: dict[str, Version]) -> Failures:
        found = {LEFT: "'docs' is too new"} if at["docs"] >= Version("4.1") else {}
        return found | {RIGHT: "broken whatever is installed"}

    assert await Project(breaks).search() == {runtime("docs"): Bound("4.0", "4.1")}


@pytest.mark.asyncio
async def test_a_build_and_then_the_tests_are_repaired() -> None:
    def breaks(at: dict[str, Version]) -> Failures:
        if at["docs"] >= Version("5.0"):
            return {WHEEL_TEST: "No module named 'docs.old'", LEFT: "No module named 'docs.old'"}
        return {LEFT: "'marks' is too new"} if at["marks"] >= Version("3.0") else {}

    found = await Project(breaks).search()
    assert found == {Pin("build", "docs"): Bound("4.2", "5.0"), runtime("marks"): Bound("2.9", "3.0")}


@pytest.mark.asyncio
@pytest.mark.parametrize("num_runs", [1, 5, 40])
async def test_a_search_without_an_end_ends(num_runs: int) -> None:
    project = Project(lambda at: {LEFT: f"'docs' {'x' * at['docs'].major} 'marks' {'y' * at['marks'].major}"})
    assert await project.search(num_runs=num_runs) == {}
    assert 0 < len(project.asked) <= num_runs


@pytest.mark.asyncio
async def test_the_oldest_series_is_tried_before_a_suspect_is_let_go() -> None:
    project = Project(lambda at: {LEFT: "'docs'"} if at["docs"] >= Version("2.0") else {})
    # Series 5.0, 4.2, 4.1, 4.0 and 2.0 are too new; the sixth step goes to the end.
    assert await project.search(num_runs=5) == {}
    assert await Project(project.breaks).search() == {runtime("docs"): Bound("1.0", "2.0")}


@pytest.mark.asyncio
async def test_a_bound_that_runs_do_not_suffice_for_is_one_that_is_known_to_break() -> None:
    released = {"deep": ["3.0", *(f"2.0.{patch}" for patch in range(9, -1, -1)), "1.0"]}
    project = Project(lambda at: {LEFT: "'deep'"} if at["deep"] >= Version("2.0.5") else {}, released)
    assert await project.search() == {runtime("deep"): Bound("2.0.4", "2.0.5")}
    # Two runs find that 2.0.9 is too new and 1.0 is not; one run is left for what is between them.
    coarse = (await Project(project.breaks, released).search(num_runs=3))[runtime("deep")]
    assert Version(coarse.good) <= Version("2.0.4") < Version("2.0.5") <= Version(coarse.bad)
    assert coarse != Bound("2.0.4", "2.0.5")


@pytest.mark.asyncio
async def test_versions_that_break_others_are_no_repair() -> None:
    project = Project(lambda at: {LEFT: "'docs'"} if at["docs"] >= Version("5.0") else {OTHER: "'docs' lacks it"})
    assert await project.search() == {}


@pytest.mark.asyncio
async def test_versions_of_its_own_time_are_tried_before_culprits() -> None:
    """Two culprits at once: with either of them alone the failure stays the same, so no step back changes it."""

    def breaks(at: dict[str, Version]) -> Failures:
        is_new = at["docs"] >= Version("4.1") or at["marks"] >= Version("1.3")
        return {LEFT: "'docs' and 'marks' do not go together"} if is_new else {}

    assert await Project(breaks).search() == {}
    then = {"docs": "4.0", "marks": "0.5"}
    found = await Project(breaks, then=then).search()
    assert found == {runtime("docs"): Bound("4.0", "4.1"), runtime("marks"): Bound("1.2", "1.3")}


@pytest.mark.asyncio
async def test_what_fails_alike_at_its_own_time_ends_the_search() -> None:
    project = Project(lambda at: {LEFT: f"{at['marks'].major} tests ask for another Python"}, then={"marks": "0.1"})
    assert await project.search() == {}
    assert len(project.asked) == 1


@pytest.mark.asyncio
async def test_versions_of_its_own_time_that_fail_otherwise_are_no_start() -> None:
    def breaks(at: dict[str, Version]) -> Failures:
        if at["marks"] < Version("1.0"):
            return {LEFT: "'marks' is too old for this Python", RIGHT: "so is this"}
        return {LEFT: "'marks' is too new"} if at["marks"] >= Version("3.0") else {}

    assert await Project(breaks, then={"marks": "0.1"}).search() == {runtime("marks"): Bound("2.9", "3.0")}


@pytest.mark.asyncio
async def test_build_and_tests_get_the_versions_of_their_own_time_in_turn() -> None:
    def breaks(at: dict[str, Version]) -> Failures:
        if at["docs"] >= Version("5.0"):
            return {WHEEL_TEST: "No module named 'docs.old'", LEFT: "No module named 'docs.old'"}
        return {LEFT: "'marks' is too new"} if at["marks"] >= Version("3.0") else {}

    class Dated(Project):
        def own_time(self, place: Place) -> Pins:
            return {Pin("build", "docs"): "4.0"} if place == "build" else {runtime("marks"): "1.0"}

    found = await Dated(breaks).search()
    assert found == {Pin("build", "docs"): Bound("4.2", "5.0"), runtime("marks"): Bound("2.9", "3.0")}


@pytest.mark.asyncio
async def test_versions_that_are_known_to_lack_names_need_one_run() -> None:
    def breaks(at: dict[str, Version]) -> Failures:
        return {LEFT: "cannot import name"} if at["marks"] >= Version("3.0") else {}

    found = {runtime("marks"): Bound("2.9", "3.0")}
    project = Project(breaks, lacking=found)
    assert await project.search() == found
    assert len(project.asked) == 1
    # What repairs nothing leaves the search as it was.
    astray = {runtime("docs"): Bound("3.0", "4.0")}
    assert await Project(breaks, lacking=astray).search() == found
