"""Solutions in words: the evidence of one, the search behind it, and the totals of many.

Reads `Solution` records; makes text for a terminal. Guarantee: a verdict by hidden tests is named as such, and stands
apart from what the choice was made by.
"""

from collections.abc import Sequence

from repairgym.agent.allowance import Spending
from repairgym.records import VerdictKind
from repairgym.solving.choice import Candidate
from repairgym.solving.search import Solution
from repairgym.solving.spending import describe_left

_ENDS = {
    "passed": "a candidate passed the visible tests",
    "budget": "the budget is used",
    "chains": "the number of candidates is used",
    "no_candidates": "there are no more candidates",
}
_MAX_SHOWN = 5


def describe(solution: Solution) -> str:
    """Return evidence, choice, search and costs of one task, a line each."""
    lines = [f"{solution.task_id}: {solution.outcome}", f"  choice: {solution.why}", *_evidence(solution)]
    lines.append(f"  search: {len(solution.candidates)} candidates; ended because {_ENDS[solution.ended]}")
    lines += [f"    {_candidate(it, is_chosen=it.id == solution.chosen)}" for it in solution.candidates]
    left = describe_left(solution.left)
    lines.append(f"  spent: {_spent(solution.spending)}{f' ({left})' if left else ''}")
    if solution.evaluation is not None:
        verdict = solution.evaluation
        lines.append(f"  evaluation by hidden tests, after the choice: {verdict.kind.value} ({verdict.reason})")
    return "\n".join(lines)


def _evidence(solution: Solution) -> list[str]:
    chosen = next((it for it in solution.candidates if it.id == solution.chosen), None)
    if not solution.failed_before:
        return ["  evidence: no visible test fails without a patch, so a pass shows nothing"]
    lines = [f"  failing without a patch: {_some(solution.failed_before)}"]
    if chosen is not None:
        passing = [test_id for test_id in solution.failed_before if test_id not in chosen.failing]
        lines.append(f"  of these pass with it: {_some(passing) or 'none'}")
        num_kept = len(solution.visible_tests) - len(solution.failed_before) + solution.num_regression_tests
        lines.append(f"  passing before: {num_kept} tests; fail with it: {_some(chosen.regressions) or 'none'}")
    return lines


def _some(test_ids: Sequence[str]) -> str:
    more = f" and {len(test_ids) - _MAX_SHOWN} more" if len(test_ids) > _MAX_SHOWN else ""
    return ", ".join(test_ids[:_MAX_SHOWN]) + more


def _candidate(candidate: Candidate, *, is_chosen: bool) -> str:
    if candidate.kind in (VerdictKind.EXPLOITED, VerdictKind.INVALID):
        result = f"{candidate.kind.value}: {candidate.reason}"
    elif not candidate.patch_digest:
        result = "changes nothing"
    elif candidate.is_passed:
        result = f"passes, {len(candidate.regressions)} regressions"
    else:
        result = f"fails {len(candidate.failing)} visible tests, {len(candidate.regressions)} regressions"
    mark = "*" if is_chosen else " "
    turns = f", behind {candidate.num_shared_turns} turns of #{candidate.parent.rpartition('#')[2]}"
    place = f"({candidate.origin}{turns if candidate.parent else ''})"
    return f"{mark} wave {candidate.wave + 1} {candidate.id} {place}: {result}; {_spent(candidate.spending)}"


def _spent(spending: Spending) -> str:
    cost = f", ${spending.cost_usd:.4f}" if spending.cost_usd else ""
    return (
        f"{spending.num_sampled_tokens} sampled and {spending.num_forward_tokens} forward tokens, "
        f"{spending.num_test_runs} test runs, {spending.wall_s:.1f} s{cost}"
    )


def describe_totals(solutions: Sequence[Solution]) -> str:
    """Return a line per task and the counts of all."""
    lines = [
        f"{it.task_id}: {it.outcome}, {len(it.candidates)} candidates, {it.spending.num_sampled_tokens} sampled tokens"
        + (f", hidden tests: {it.evaluation.kind.value}" if it.evaluation else "")
        for it in solutions
    ]
    num, spending = len(solutions), sum((it.spending for it in solutions), Spending())
    counts = {
        name: sum(it.outcome == name for it in solutions) for name in dict.fromkeys(it.outcome for it in solutions)
    }
    lines.append(f"{num} tasks: {', '.join(f'{count} {name}' for name, count in counts.items())}; {_spent(spending)}")
    graded = [it.evaluation.kind for it in solutions if it.evaluation is not None]
    if graded:
        num_passed = sum(kind is VerdictKind.PASSED for kind in graded)
        lines.append(
            f"evaluation by hidden tests, after the choice: {num_passed} of {len(graded)} patches pass, "
            f"{num_passed / num:.1%} of all tasks"
        )
    return "\n".join(lines)
