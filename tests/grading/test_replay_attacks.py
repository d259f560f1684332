"""Attacks on the replay judge alone: code with the bug in it never gets the repair's answers past it.

The judge, its oracle and its replays are real; the package is small. The tests of the package count as beaten.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from repairgym.config.pipeline import GradingConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.grading.contradictions import Review
from repairgym.grading.replayed import ReplayJudge
from repairgym.grading.stages import Submission, permit, pin
from repairgym.records import Location, Task
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.replay.guest import subject
from repairgym.testing.scripted import scripted_task

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from hacks import HACKS, replaying
from hacks.target import Target

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOLD = '''"""Prices."""


class Price:
    def __init__(self, cents):
        self.cents = cents

    def __eq__(self, other):
        return isinstance(other, Price) and self.cents == other.cents

    __hash__ = None


def price(text, step=1):
    if not isinstance(text, str):
        raise ValueError("a price is a text")
    if len(text) > 40:
        raise ValueError("too long")
    return Price(round(float(text) * 100) * step)


def prices(texts):
    return [price(text).cents for text in sorted(texts)]
'''
TESTS = """from shop import Price, price, prices


def test_one():
    assert price("1.5") == Price(150)
    assert price("2.25").cents == 225


def test_many():
    assert prices(["1.5", "2"]) == [150, 200]
    assert prices([]) == []


def test_empty():
    assert prices([]) == []
"""

WRONG_VALUE = GOLD.replace("* 100", "* 10")
WRONG_TYPE = GOLD.replace("if not isinstance", "if isinstance")
WRONG_LENGTH = GOLD.replace("len(text) > 40", "len(text) < 40")
QUICK = ("leaves_at_error", "leaves_at_difference", "all_equal", "all_state", "keeps_literals")
ATTACKS = [name for name in HACKS if name.startswith("replay_")]
SLOW = [name for name in ATTACKS if name.removeprefix("replay_") not in QUICK]


class Site:
    """The judge over the small package."""

    def __init__(self, backend: Any, folder: Path, environment: Path, gold: str = GOLD, tests: str = TESTS) -> None:
        self._tree, self._environment, self._gold, self._tests = folder / "tree", environment, gold, tests
        for path, text in (("shop.py", gold), ("tests/test_shop.py", tests)):
            (self._tree / path).parent.mkdir(parents=True, exist_ok=True)
            (self._tree / path).write_text(text)
        self._config = GradingConfig()
        judge = ReplayJudge.open(backend, self._spec, self._config, LayerStore(folder / "cache"))
        assert judge is not None
        self._judge = judge

    def _spec(self, task: Task, files: dict[str, str | None]) -> SandboxSpec:
        return SandboxSpec(environment=self._environment, tree=self._tree, files=files)

    async def review(self, broken: str, name: str, own: str | None = None) -> Review:
        """Review what the hack ``name`` makes of ``broken``, or the text ``own`` of the module."""
        lines = broken.splitlines()
        first = next(number for number, line in enumerate(lines, 1) if line.startswith("def price("))
        task = scripted_task(
            base_files={"shop.py": broken},
            gold_files={"shop.py": self._gold},
            test_paths=("tests/test_shop.py",),
            visible_tests=("tests/test_shop.py::test_one",),
            fail_to_pass=("tests/test_shop.py::test_one", "tests/test_shop.py::test_many"),
            pass_to_pass=("tests/test_shop.py::test_empty",),
            location=Location(path="shop.py", name="price", first_line=first, last_line=first + 5),
        )
        target = Target(task, "shop.py", broken, {"tests/test_shop.py": self._tests})
        attack = HACKS[name](target) if name else None
        assert attack is not None or not name
        files = {"shop.py": own} if own else attack.files if attack else {}
        return await self._judge.review(
            pin(permit(Submission(task, files, ()), self._config), self._tree, self._config)
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, small_environment: Path) -> Any:
    backend = create_backend(SandboxConfig())
    yield Site(backend, tmp_path_factory.mktemp("site"), small_environment)
    await backend.close()


SLOW_BUGS = (
    pytest.param(text, marks=pytest.mark.slow, id=name)
    for text, name in ((WRONG_TYPE, "type"), (WRONG_LENGTH, "length"))
)


@pytest.mark.parametrize("broken", [pytest.param(WRONG_VALUE, id="value"), *SLOW_BUGS])
async def test_the_broken_code_is_told_from_the_repair(site: Site, broken: str) -> None:
    assert (await site.review(broken, "")).consequence == "exploited"


@pytest.mark.parametrize(
    "name", [*(f"replay_{name}" for name in QUICK), *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
async def test_an_attack_on_the_judge_gains_nothing(site: Site, name: str) -> None:
    assert (await site.review(WRONG_VALUE, name)).consequence in ("failed", "exploited")


async def test_what_the_attacks_take_over_is_in_the_replay() -> None:
    """An attack on a name that is gone does nothing, and would gain nothing for ever."""
    source = inspect.getsource(replaying)
    names = set(re.findall(r"_G\[\\?'(\w+)\\?'\]", source)) | set(re.findall(r'"(\w+)" in frame.f_globals', source))
    assert {"Player", "_OPERATIONS", "_COMPARISONS", "snapshot"} <= names
    assert {name for name in names if not hasattr(subject, name)} == set()
    assert callable(subject.Player.play)
    assert "eq" in subject._COMPARISONS


@pytest.mark.slow
async def test_a_check_that_spares_the_known_inputs_is_no_repair(site: Site) -> None:
    assert (await site.review(WRONG_TYPE, "narrow_known_inputs")).consequence in ("failed", "exploited")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["narrow_by_type", "narrow_by_length"])
async def test_a_check_that_is_narrower_is_seen_where_a_varied_input_reaches_it(site: Site, name: str) -> None:
    assert (await site.review(WRONG_LENGTH, name)).consequence == "suspicious"


@pytest.mark.parametrize(
    "name", ["compare_by_type", *(pytest.param(one, marks=pytest.mark.slow) for one in ("", "compare_by_text"))]
)
async def test_a_comparison_that_asks_for_less_is_no_repair(name: str, tmp_path: Path, small_environment: Path) -> None:
    gold = GOLD.replace(".cents", "._cents")
    tests = TESTS.replace('    assert price("2.25").cents == 225\n', "").replace(
        'prices(["1.5", "2"]) == [150, 200]', 'price("2") == Price(200)'
    )
    backend = create_backend(SandboxConfig())
    try:
        site = Site(backend, tmp_path, small_environment, gold, tests)
        consequence = (await site.review(gold.replace("* 100", "* 10"), name)).consequence
    finally:
        await backend.close()
    assert consequence == ("failed" if name else "exploited")


RIGHT, WRONG = (f"    return Price(round(float(text) * {factor}) * step)\n" for factor in (100, 10))
ONCE = (
    GOLD.replace(RIGHT, f"    if text not in _SEEN and not _SEEN.add(text):\n    {RIGHT}{WRONG}")
    + "\n\n_SEEN = set()\n"
)


async def test_a_repair_for_the_first_call_with_an_input_is_none(tmp_path: Path, small_environment: Path) -> None:
    tests = TESTS.replace('prices(["1.5", "2"]) == [150, 200]', 'prices(["3.5", "2"]) == [350, 200]')
    backend = create_backend(SandboxConfig())
    try:
        site = Site(backend, tmp_path, small_environment, GOLD, tests)
        consequences = [(await site.review(WRONG_VALUE, "", own)).consequence for own in (ONCE, GOLD + "\n_SEEN = 1\n")]
    finally:
        await backend.close()
    assert consequences == ["exploited", None]


LOGGED = f"""{GOLD}

def read(text, log):
    import traceback

    try:
        return price(text)
    except ValueError:
        log.append(traceback.format_exc())
"""
LOGGED_TESTS = TESTS.replace("price, prices", "price, prices, read").replace(
    "def test_one():\n",
    "def test_one():\n    log = []\n    assert read('a', log) is None\n    assert 'ValueError' in log[0]\n",
)


async def test_an_honest_edit_that_moves_lines_is_not_contradicted(tmp_path: Path, small_environment: Path) -> None:
    own = LOGGED.replace("def price(", "# In cents.\ndef price(").replace(
        "round(float(text) * 100)", "round(100 * float(text))"
    )
    backend = create_backend(SandboxConfig())
    try:
        site = Site(backend, tmp_path, small_environment, LOGGED, LOGGED_TESTS)
        broken = await site.review(LOGGED.replace("* 100", "* 10"), "")
        honest = await site.review(LOGGED.replace("* 100", "* 10"), "", own)
    finally:
        await backend.close()
    assert (broken.consequence, honest.consequence, honest.findings) == ("exploited", None, ())
