"""Routers: situations by hand, the member that acts in each, replays, and what no policy gradient can learn."""

from __future__ import annotations

import asyncio

import pytest

from repairgym.agent.review import ROLES
from repairgym.agent.routing import Cell, Member, Router, RouterPolicy, Team, read_members, situation
from repairgym.errors import InputError
from repairgym.inference.base import Generation, SamplingParams
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.records import Turn

SAMPLING = SamplingParams(stop_token_ids=(0,), seed=3)


def turn(tool: str, observation: str = "x", error: str = "") -> Turn:
    return Turn(action=tool, tool=tool, observation=observation, error=error, action_span=(0, 1))


EDIT, PASSED, FAILED = turn("edit"), turn("test", "passed 3"), turn("test", "failed 1 of 3: no")


@pytest.mark.parametrize(
    ("turns", "name"),
    [
        ([], "unchanged"),
        ([FAILED], "unchanged"),  # the tests of the broken code say nothing new
        ([turn("edit", error="usage")], "unchanged, after an error"),
        ([EDIT], "changed, not tested"),
        ([EDIT, FAILED], "tests failed"),
        ([EDIT, FAILED, turn("edit", error="usage")], "tests failed, after an error"),
        ([EDIT, FAILED, EDIT], "changed, not tested"),
        ([EDIT, FAILED, EDIT, PASSED], "tests passed"),
    ],
)
def test_situations_by_hand(turns, name):
    assert situation(turns) == name


class Counting:
    """Answers with its own token; remembers its sessions."""

    def __init__(self, name: str, token: int) -> None:
        self.id = name
        self.token = token
        self.recalled: list[str] = []
        self.ended: list[str] = []

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        return Generation(token_ids=(self.token,), log_probs=(-0.5,), is_stopped=True, policy_version=2)

    async def recall(
        self, session_id: str, prompt_ids: list[int], sampling: SamplingParams, generation: Generation
    ) -> None:
        self.recalled.append(session_id)

    async def end_session(self, session_id: str) -> None:
        self.ended.append(session_id)


@pytest.fixture
def router() -> Router:
    members = tuple(Member(name=name, folder=f"/{name}", weights_digest=name) for name in ("first", "second"))
    cell = Cell(num_episodes=9, num_passed=5, value=0.5)
    table = {"tests failed": {"second": cell}}
    return Router(members=members, best="first", table=table, choices={"tests failed": "second"})


def test_each_situation_has_its_member_and_unknown_ones_the_best(router):
    members = {"first": Counting("first", 7), "second": Counting("second", 8)}
    policy = RouterPolicy(router, members, "router")

    async def play() -> list[int]:
        watcher, tokens = policy.watch("s"), []
        for after in (None, EDIT, FAILED, EDIT):
            if after is not None:
                watcher.acted(after)
            made = await policy.generate("s", [1], SAMPLING)
            assert (made.policy_version, made.token_versions, made.log_probs) == (UNKNOWN_VERSION, (), (-0.5,))
            tokens += made.token_ids
        await policy.end_session("s")
        return tokens

    assert asyncio.run(play()) == [7, 7, 8, 7]
    assert members["first"].ended == members["second"].ended == ["s"]


def test_a_replay_recalls_in_the_member_that_had_acted(router):
    members = {"first": Counting("first", 7), "second": Counting("second", 8)}
    policy = RouterPolicy(router, members, "router")

    async def play() -> None:
        watcher = policy.watch("s")
        for after in (EDIT, FAILED):
            watcher.acted(after)
        made = Generation(token_ids=(8,), log_probs=(-0.5,), is_stopped=True, policy_version=UNKNOWN_VERSION)
        await policy.recall("s", [1], SAMPLING, made)

    asyncio.run(play())
    assert (members["first"].recalled, members["second"].recalled) == ([], ["s"])


def test_another_reader_sees_every_turn(router):
    class Reader:
        seen: list[Turn] = []

        def opened(self, prompt):
            pass

        def acted(self, turn):
            self.seen.append(turn)

    watcher = RouterPolicy(router, {}, "router").watch("s", Reader())
    watcher.acted(EDIT)
    assert Reader.seen == [EDIT]


def test_another_file_is_no_router_and_no_team(tmp_path, router):
    path = tmp_path / "router.json"
    path.write_text(router.model_dump_json())
    assert read_members(path) == router
    members = tuple(Member(name=name, folder=f"/{name}", weights_digest=name) for name in ROLES)
    team = Team(members=members, review="actions")
    path.write_text(team.model_dump_json())
    assert read_members(path) == team
    path.write_text("{}")
    with pytest.raises(InputError, match="no file of `repairgym eval router` or `train malt`"):
        read_members(path)


def test_each_role_of_a_team_acts_in_its_place_of_the_episode():
    members = tuple(Member(name=name, folder=f"/{name}", weights_digest=name) for name in ROLES)
    policies = {name: Counting(name, token) for token, name in enumerate(ROLES)}
    policy = RouterPolicy(Team(members=members, review="actions"), policies, "team")

    async def play() -> list[int]:
        watcher, tokens = policy.watch("s"), []
        for after in (None, EDIT, turn("submit", "failed 1 of 1: no"), turn("review"), EDIT):
            if after is not None:
                watcher.acted(after)
            tokens += (await policy.generate("s", [1], SAMPLING)).token_ids
        return tokens

    assert asyncio.run(play()) == [0, 0, 1, 2, 2]
    for names in (ROLES[:2], (ROLES[1], ROLES[0], ROLES[2])):
        with pytest.raises(ValueError, match="expected"):
            Team(members=tuple(Member(name=it, folder=it, weights_digest=it) for it in names), review="actions")
