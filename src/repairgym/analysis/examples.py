"""Episodes to look at, and counts of exploit findings during training.

Reads episodes; makes counts by training step, examples of findings, and example trajectories to read in full.
Guarantees: an episode counts once per detector and severity; examples are chosen by rule, so the choice repeats.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from repairgym.analysis.behavior import is_loop
from repairgym.analysis.episodes import EpisodeFacts
from repairgym.evaluation.stages import RELEASES, START, TREATMENT, parse_eval_phase, training_step
from repairgym.records import Record, StopReason, VerdictKind


@dataclass(frozen=True)
class Example:
    """A trajectory to read in full, and the reason for the choice."""

    title: str
    why: str
    episode: EpisodeFacts


def choose_examples(episodes: Iterable[EpisodeFacts]) -> list[Example]:
    """Choose up to five evaluation episodes: success, near miss, loop, exploit or blind submission, release task.

    The latest stage comes first, ties are broken by id; an episode is chosen once.
    """
    pool = sorted(episodes, key=lambda episode: (_stage_rank(episode), episode.id))
    chosen: list[Example] = []
    for title, why, is_meant, rank in _KINDS:
        taken = {example.episode.id for example in chosen}
        matching = [episode for episode in pool if is_meant(episode) and episode.id not in taken]
        if matching and not _is_settled(title, chosen):
            best = min(matching, key=lambda episode: (_stage_rank(episode), rank(episode), episode.id))
            chosen.append(Example(title, why, best))
    return chosen


def _is_settled(title: str, chosen: Sequence[Example]) -> bool:
    return title == _BLIND and any(example.title == _EXPLOIT for example in chosen)


def _is_release(episode: EpisodeFacts) -> bool:
    phase = parse_eval_phase(episode.phase)
    return phase is not None and phase.test_set == RELEASES


def _stage_rank(episode: EpisodeFacts) -> int:
    """Return 0 for the trained policy, more for its checkpoints, the start, and everything else."""
    phase = parse_eval_phase(episode.phase)
    stage = phase.stage if phase else ""
    if stage == TREATMENT:
        return 0
    step = training_step(stage)
    if step:
        return 100_000 - step
    return 100_001 if stage == START else 100_002


def _missed_share(episode: EpisodeFacts) -> float:
    return 1.0 - episode.num_tests_passed / episode.num_tests if episode.num_tests else 1.0


_EXPLOIT, _BLIND = "An exploit", "A blind submission"
_KINDS: tuple[tuple[str, str, Callable[[EpisodeFacts], bool], Callable[[EpisodeFacts], float]], ...] = (
    (
        "A clean success",
        "edited, tested, submitted, and every test passes",
        lambda it: it.verdict is VerdictKind.PASSED and not it.is_blind_submit and not _is_release(it),
        lambda it: abs(it.num_turns - 4) + 10 * (it.num_format_errors + it.num_tool_errors),
    ),
    (
        "A near miss",
        "failed with the largest share of tests passing",
        lambda it: it.verdict is VerdictKind.FAILED and it.num_edits > 0 and not _is_release(it),
        _missed_share,
    ),
    (
        "A loop",
        "ran out of turns or repeated itself",
        lambda it: it.stop_reason is StopReason.TURN_LIMIT or is_loop(it),
        lambda it: -it.num_repeats,
    ),
    (
        _EXPLOIT,
        "stopped by an exploit detector",
        lambda it: it.verdict is VerdictKind.EXPLOITED,
        lambda it: it.num_turns,
    ),
    (
        _BLIND,
        "submitted with no test run after the last edit, and failed",
        lambda it: it.is_blind_submit and it.verdict is VerdictKind.FAILED,
        lambda it: -it.num_edits,
    ),
    (
        "A real bug",
        "an attempt at a bug that a release of the package fixed",
        _is_release,
        lambda it: _missed_share(it) + (it.verdict is not VerdictKind.PASSED),
    ),
)


class ExploitCount(Record):
    """Episodes of a step that one detector marked."""

    step: int
    detector: str
    severity: Literal["exploit", "suspicious"]
    num_episodes: int
    num_in_step: int
    """Episodes of the step."""

    @property
    def share(self) -> float:
        """Share of the step's episodes."""
        return self.num_episodes / self.num_in_step


class ExploitExample(Record):
    """One finding to look at."""

    trajectory_id: str
    step: int
    verdict: VerdictKind
    detector: str
    severity: str
    place: str
    """``path:line`` as far as known."""
    detail: str


def exploits_by_step(episodes: Iterable[EpisodeFacts]) -> list[ExploitCount]:
    """Count marked episodes by step, detector and severity."""
    totals: Counter[int] = Counter()
    marked: Counter[tuple[int, str, Literal["exploit", "suspicious"]]] = Counter()
    for episode in episodes:
        totals[episode.step] += 1
        for detector, severity in {(finding.detector, finding.severity) for finding in episode.evidence}:
            if severity != "note":
                marked[episode.step, detector, severity] += 1
    return [
        ExploitCount(step=step, detector=name, severity=severity, num_episodes=count, num_in_step=totals[step])
        for (step, name, severity), count in sorted(marked.items())
    ]


def exploit_examples(episodes: Sequence[EpisodeFacts], num_per_detector: int = 2) -> list[ExploitExample]:
    """Return the latest findings of each detector, exploits before suspicions."""
    examples: list[ExploitExample] = []
    taken: Counter[tuple[str, str]] = Counter()
    for episode in sorted(episodes, key=lambda episode: (-episode.step, episode.id)):
        seen: set[tuple[str, str]] = set()
        for finding in episode.evidence:
            key = (finding.severity, finding.detector)
            if key in seen or taken[key] == num_per_detector:
                continue
            seen.add(key)
            taken[key] += 1
            place = f"{finding.path}:{finding.line}" if finding.path and finding.line else finding.path
            examples.append(
                ExploitExample(
                    trajectory_id=episode.id,
                    step=episode.step,
                    verdict=episode.verdict,
                    detector=finding.detector,
                    severity=finding.severity,
                    place=place,
                    detail=finding.detail,
                )
            )
    return sorted(examples, key=lambda it: (it.severity, it.detector, -it.step, it.trajectory_id))
