"""The leaderboard: evaluated policies of all runs, ranked on their common tasks with intervals of the ranks.

Reads the evaluations of runs; makes HTML. Guarantees: the statistics are those of `repairgym eval rank`; what is shown
is in the address; a run that cannot be read is named and hides no other.
"""

import sqlite3
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse

from repairgym.errors import InputError
from repairgym.evaluation.ranking import Leaderboard, Policy, evaluated_policies, leaderboard
from repairgym.evaluation.stages import label_of_test_set, stage_label
from repairgym.report.figures import Figure, rank_plot
from repairgym.view.folders import Evaluations, ViewedRun
from repairgym.view.site import Site

PAGE = "leaderboard"
_MAX_POLICIES = 60
"""Of one leaderboard; more have intervals that say nothing, and a page that nobody reads."""
_NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Board:
    """A test set, and what can be said of its policies."""

    test_set: str
    policies: dict[str, Policy]
    ranked: Leaderboard | None = None
    sentence: str = ""
    figure: Figure | None = None
    problem: str = ""


def leaderboard_url(stage: str = "", runs: tuple[str, ...] = ()) -> str:
    """Return the address of the leaderboard, of one stage and of some runs."""
    query = urlencode([*([("stage", stage)] if stage else []), *(("run", key) for key in runs)], errors="replace")
    return f"/{PAGE}" + (f"?{query}" if query else "")


class LeaderboardPages:
    """Handlers: request -> page."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def leaderboard(self, request: Request) -> HTMLResponse:
        """All evaluated policies, by test set; those of one stage or of some runs where the address names them."""
        stage = request.query_params.get("stage", "")
        keys = tuple(dict.fromkeys(filter(None, request.query_params.getlist("run"))))
        present = self._site.folders.all()
        chosen = [self._site.folders.get(key) for key in keys] or present
        known, problems = _evaluations(chosen)
        stages = sorted({phase.stage for phases in known.values() for phase in phases})
        if stage:
            known = {name: {it: known[name][it] for it in known[name] if it.stage == stage} for name in known}
        return self._site.page(
            "leaderboard.html.j2",
            title="Leaderboard",
            boards=[_board(name, policies) for name, policies in evaluated_policies(known).items()],
            runs={viewed.name: viewed for viewed in chosen},
            problems=problems,
            stages=stages,
            stage=stage,
            keys=keys,
            choices=present,
            url=leaderboard_url,
        )


def _evaluations(runs: list[ViewedRun]) -> tuple[dict[str, Evaluations], dict[str, str]]:
    """Return the evaluations by run, and why a run has none."""
    known: dict[str, Evaluations] = {}
    problems = {}
    for viewed in runs:
        try:
            known[viewed.name] = viewed.evaluations
        except (InputError, sqlite3.Error, OSError) as error:
            problems[viewed.name] = str(error)
    return known, problems


def _board(test_set: str, policies: dict[str, Policy]) -> Board:
    if len(policies) > _MAX_POLICIES:
        problem = f"{len(policies)} policies are too many to rank together; choose a stage or fewer runs"
        return Board(test_set, policies, problem=problem)
    try:
        ranked = leaderboard(test_set, policies, num_resamples=_NUM_RESAMPLES)
    except InputError as error:
        return Board(test_set, policies, problem=str(error))
    labels = {name: _label(name, policy) for name, policy in policies.items()}
    title = f"Pass@1 on {label_of_test_set(test_set)}"
    return Board(test_set, policies, ranked, ranked.sentence(labels), rank_plot(ranked.places, labels, title))


def _label(name: str, policy: Policy) -> str:
    label = stage_label(policy.stage)
    return label if name == policy.stage else f"{label}, {policy.run}"
