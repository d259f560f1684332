"""`repairgym tasks build --imported`: imported records to certified tasks."""

import asyncio
from collections import Counter
from pathlib import Path

import typer

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import print_json
from repairgym.config.tasks import ImportedConfig
from repairgym.errors import Interrupted, TaskError
from repairgym.tasks.imported.build_imported import ImportedBuilder, Progress
from repairgym.tasks.imported.outcomes import OUTCOMES_FOLDER, STAGES, BuildOutcome, describe, funnel_of

_MINUTE_S = 60


def build_imported(folder: Path, config: ImportedConfig, is_json: bool) -> None:
    """Build the imported records of ``folder`` and print where each came to."""
    builder = ImportedBuilder(folder, config)
    with ProgressDisplay() as progress:

        def report(done: Progress) -> None:
            detail = f"{done.num_certified} certified, about {done.left_s / _MINUTE_S:.0f} min left"
            progress("build", done.num_done, done.num_records, detail)
            if not done.outcome.is_certified:
                progress(done.outcome.id, 0, 0, f"{done.outcome.stage}: {done.outcome.reason}")

        try:
            outcomes = asyncio.run(builder.build(report))
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted; finished records are kept, the same command resumes there") from error
    if is_json:
        print_json({"total": funnel_of(outcomes), "records": {done.id: describe(done) for done in outcomes}})
    else:
        _print_funnel(outcomes)
        typer.echo(f"lists of each record next to the certified ones, and its reason: {folder / OUTCOMES_FOLDER}")
    if not any(done.is_certified for done in outcomes):
        raise TaskError(f"none of the {len(outcomes)} records could be certified; the first: {outcomes[0].reason}")


def _print_funnel(outcomes: list[BuildOutcome]) -> None:
    """Print how many records stopped at each stage, and the difference between official and certified lists."""
    stopped = Counter(done.stage for done in outcomes)
    left = len(outcomes)
    typer.echo(f"{'stage':<14}{'stopped':>8}{'left':>6}")
    for stage in STAGES[:-1]:
        left -= stopped[stage]
        typer.echo(f"{stage:<14}{stopped[stage]:>8}{left:>6}")
    counts = [done.counts for done in outcomes if done.counts]
    official = sum(c.num_official_fail_to_pass + c.num_official_pass_to_pass for c in counts)
    certified = sum(c.num_fail_to_pass + c.num_pass_to_pass for c in counts)
    unmatched, before = sum(len(c.unmatched) for c in counts), sum(len(c.passed_before) for c in counts)
    typer.echo(f"{left} certified of {len(outcomes)}; tests: {official} official, {certified} certified", nl=False)
    typer.echo(f", {unmatched} official ones without a match, {before} official failures that pass before the repair")
