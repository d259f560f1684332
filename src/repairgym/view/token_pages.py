"""The page of the tokens of a trajectory: a window of them, shaded by likelihood or by what an update learned.

Reads a token ledger, the tokenizer and the stored signals; makes HTML. Guarantees: every shade has its number in the
title of the token; a value that the run does not hold is absent, and the page gives the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby

import numpy as np
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from repairgym.ledger import TokenLedger
from repairgym.report.reading import MAX_TURNS
from repairgym.report.safe_text import plain
from repairgym.report.tokens import WINDOW_TOKENS, Piece, read_pieces, summarize_tokens
from repairgym.rollout.signals import TokenSignals
from repairgym.view.run_pages import weights_of
from repairgym.view.site import OpenRun, Site, number_in, trajectory_url
from repairgym.view.trajectory_pages import or_problem

NUM_COLORS = 8
"""Of policy versions; more versions share them."""


@dataclass(frozen=True)
class Overlay:
    """A way to shade the tokens."""

    name: str
    mark: str
    """First letter of its classes."""
    sentence: str
    bounds: tuple[float, ...] = ()
    """Between the steps of the scale; for values with a sign, of their size."""
    is_signed: bool = False

    @property
    def steps(self) -> list[tuple[str, str]]:
        """(class, label) of the legend."""
        labels = [*(f"≤ {bound:g}" for bound in self.bounds), f"> {self.bounds[-1]:g}"] if self.bounds else []
        if not self.is_signed:
            return [(f"{self.mark}{step}", label) for step, label in enumerate(labels)]
        below = [(f"{self.mark}n{step}", label) for step, label in enumerate(labels)][:0:-1]
        return [*((css, f"−{label[2:]}") for css, label in below), (f"{self.mark}p0", "0"), *above(self.mark, labels)]

    def css(self, value: float) -> str:
        """Return the class of a token with this value."""
        step = sum(abs(value) > bound for bound in self.bounds)
        return f"{self.mark}{('n' if value < 0 else 'p') if self.is_signed and step else 'p' * self.is_signed}{step}"


def above(mark: str, labels: Sequence[str]) -> list[tuple[str, str]]:
    """Return (class, label) of the positive steps of a scale with a sign."""
    return [(f"{mark}p{step}", f"+{label[2:]}") for step, label in enumerate(labels) if step]


LIKELIHOOD = Overlay("likelihood", "l", "Probability with which the token was sampled.")
MASK = Overlay("mask", "M", "Learned, sampled but masked, or context.")
VERSION = Overlay("version", "V", "Policy version that sampled the token.")
SIGNED = (0.05, 0.25, 0.5, 1.0)
ADVANTAGE = Overlay("advantage", "A", "How much better than expected: of the episode, turn or token.", SIGNED, True)
RATIO = Overlay("ratio", "R", "Learner's probability / old probability, minus 1.", (0.001, 0.01, 0.05, 0.2), True)
WEIGHT = Overlay(
    "weight", "W", "Weight in the loss, as a share of the largest of this trajectory.", (0.2, 0.4, 0.6, 0.8)
)
GAP = Overlay(
    "gap", "G", "|log-probability of the learner − of the sampler|.", (1e-5, 1e-4, 1e-3, 5e-3, 0.02, 0.1, 0.5)
)
ENTROPY = Overlay("entropy", "E", "Entropy of the learner's distribution, in nats.", (0.01, 0.1, 0.3, 0.6, 1, 1.5, 2.5))
ALWAYS = (LIKELIHOOD, MASK, VERSION)
OF_UPDATE = (ADVANTAGE, RATIO, WEIGHT, GAP, ENTROPY)


@dataclass
class Shading:
    """Classes and values of the tokens of a window, by index in the ledger."""

    css: dict[int, str] = field(default_factory=dict)
    values: dict[int, str] = field(default_factory=dict)


def shade(pieces: Sequence[Piece], ledger: TokenLedger, signals: TokenSignals | None) -> Shading:
    """Return the shades of the sampled tokens; a piece of several tokens has those of the first."""
    versions = {version: at for at, version in enumerate(np.unique(ledger.policy_version[ledger.is_action]).tolist())}
    rows = {} if signals is None else {place: at for at, place in enumerate(signals.place.tolist())}
    shading = Shading()
    for piece in pieces:
        if not piece.is_action:
            continue
        at = rows.get(piece.start)
        marks = [f"M{int(at is not None)}", f"V{versions.get(piece.policy_version, 0) % NUM_COLORS}"]
        if signals is not None and at is not None:
            learned = _learned(signals, at, ledger)
            marks += [overlay.css(value) for overlay, (value, _) in learned.items()]
            shading.values[piece.start] = ", ".join(text for _, text in learned.values())
        elif signals is not None:
            shading.values[piece.start] = "masked"
        shading.css[piece.start] = " ".join(marks)
    return shading


@dataclass(frozen=True)
class TokenMarks:
    """Places of a window that have more than a shade."""

    turns: Mapping[int, int]
    """First token -> number of the turn, which is linked."""
    turn_url: str
    """Address of the trajectory, without a query."""
    targets: frozenset[int] = frozenset()
    """Other tokens that links lead to."""


def draw_tokens(pieces: Sequence[Piece], shading: Shading, marks: TokenMarks, *, is_brief: bool = False) -> Markup:
    """Return the tokens of a window as text to shade; ``is_brief``: context between actions is one stretch."""
    parts: list[str] = []
    turn_url = escape(marks.turn_url)
    for is_action, run in groupby(pieces, key=lambda piece: piece.is_action):
        if not is_action and is_brief:
            stretch = list(run)
            first, last = stretch[0].start, stretch[-1].start + len(stretch[-1].token_ids) - 1
            text = "".join(_text_of(piece.text) for piece in stretch)
            parts.append(f'<span class="tok ctx" title="{first} to {last}: context">{text}</span>')
            continue
        for piece in run:
            if number := marks.turns.get(piece.start):
                window = number - (number - 1) % MAX_TURNS  # a page shows so many turns
                query = f"?turn={window}" if window > 1 else ""
                parts.append(f'<a class="turnmark" href="{turn_url}{query}#turn-{number}">turn {number}</a>')
            parts.append(_token(piece, shading, bool(number) or piece.start in marks.targets))
    return Markup("".join(parts))


def _token(piece: Piece, shading: Shading, is_target: bool) -> str:
    start, css, title, version = piece.start, "ctx", ", context", ""
    if piece.is_action:
        css = f"l{piece.level} {shading.css[start]}"
        title = f", p = {piece.probability:.4g}, log p = {piece.log_prob:.3f}, version {piece.policy_version}"
        title += f", {shading.values[start]}" if start in shading.values else ""
        version = f'<span class="version">v{piece.policy_version}</span>' if piece.is_first else ""
    ids, mark = " ".join(map(str, piece.token_ids)), f' id="k{start}"' if is_target else ""
    return f'{version}<span{mark} class="tok {css}" title="{start}: id {ids}{title}">{_text_of(piece.text)}</span>'


@lru_cache(maxsize=8192)
def _text_of(text: str) -> Markup:
    """Return escaped text; a vocabulary has few texts."""
    return plain(text)


def _learned(signals: TokenSignals, at: int, ledger: TokenLedger) -> dict[Overlay, tuple[float, str]]:
    """Return overlay -> (value of the scale, text)."""
    advantage, weight, entropy = (float(array[at]) for array in (signals.advantage, signals.weight, signals.entropy))
    before = signals.old_log_prob if has_correction(signals, ledger) else signals.log_prob
    ratio, gap = float(signals.ratio[at]), float(before[at]) - float(ledger.log_prob[signals.place[at]])
    largest = float(np.abs(signals.weight).max()) or 1.0
    return {
        ADVANTAGE: (advantage, f"advantage {advantage:+.3g}"),
        RATIO: (ratio - 1.0, f"ratio {ratio:.5g}"),
        WEIGHT: (weight / largest, f"weight {weight:.3g}"),
        GAP: (gap, f"gap {gap:+.2g}"),
        ENTROPY: (entropy, f"entropy {entropy:.3g}"),
    }


def has_correction(signals: TokenSignals, ledger: TokenLedger) -> bool:
    """Return True where the ratio's denominator is the learner's own before the update, not the sampler's.

    It is then also the learner's side of the gap; else that is the learner's before the token's own optimizer step.
    """
    return not np.array_equal(signals.old_log_prob, ledger.log_prob[signals.place])


def signals_sentence(run: OpenRun, number: int, signals: TokenSignals | None, ledger: TokenLedger) -> str:
    """Return where the values of an update come from, or why there are none."""
    if signals is not None:
        steps = int(signals.num_steps.max(initial=0))
        many = f"after {steps} optimizer step{'s' if steps > 1 else ''} of the same update"
        before = many if steps else "in the first step of the update"
        note = "" if has_correction(signals, ledger) or not steps else "; the gap includes what these steps changed"
        values = "Advantage, ratio, weight, gap and entropy"
        return f"{values} are those of the update that learned these tokens, {before}{note}."
    row = run.reader.entry(number).row
    status = run.reader.group(row.phase, row.step, row.group_id).status
    if status == "kept":
        reason = "no update is stored for it: it was invalid or over-long, had no advantage, or an older version ran"
    elif status.startswith("dropped"):
        reason = f"its group was {status.replace('_', ' ')}"
    else:
        reason = f"phase {row.phase} has no policy update of it"
    return f"No advantage, ratio, weight, gap or entropy: {reason}."


class TokenPages:
    """Handlers: request -> page."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def tokens(self, request: Request) -> HTMLResponse:
        """The tokens of a trajectory, a window at a time."""
        with self._site.opened(request) as run:
            entry = run.reader.entry(request.path_params["number"])
            ledger, tokenizer = run.reader.ledger(entry), run.viewed.tokenizer
            signals = run.reader.signals(entry)
            start = max(0, min(number_in(request, "from") or 0, max(0, len(ledger) - 1)))
            document, _ = or_problem(lambda: run.reader.document(entry))
            spans = [turn.action_span for turn in document.turns] if document else []
            turn_starts = {span[0]: number for number, span in enumerate(spans, 1)}
            facts, pieces = summarize_tokens(ledger), read_pieces(ledger, tokenizer, start)
            known = {overlay.name: overlay for overlay in ALWAYS + (OF_UPDATE if signals else ())}
            wanted = request.query_params.get("by", "")
            return run.page(
                "tokens.html.j2",
                f"Tokens of {entry.row.task_id}",
                is_live=False,
                entry=entry,
                facts=facts,
                unlikely=[read_pieces(ledger, tokenizer, place, 1)[0] for place in facts.unlikely],
                tokens=draw_tokens(
                    pieces,
                    shade(pieces, ledger, signals),
                    TokenMarks(turn_starts, trajectory_url(run.viewed, entry.number), frozenset(facts.unlikely)),
                    is_brief=self._site.is_static,
                ),
                overlays=list(known.values()),
                absent=[] if signals else [overlay.name for overlay in OF_UPDATE],
                chosen=wanted if wanted in known else LIKELIHOOD.name,
                sentence=signals_sentence(run, entry.number, signals, ledger),
                start=start,
                end=min(len(ledger), start + WINDOW_TOKENS),
                size=WINDOW_TOKENS,
                has_tokenizer=tokenizer is not None,
                num_learned=len(signals.place) if signals else None,
                weights=weights_of(run, entry.row.phase),
            )
