"""Templates of the report and the viewer: one environment, one base style.

Guarantees: printed values are escaped, without escape sequences and with hidden characters marked.
"""

from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from repairgym import __version__
from repairgym.evaluation.stages import label_of_test_set, phase_label, stage_label
from repairgym.report import wording
from repairgym.report.safe_text import block, inline, plain
from repairgym.report.tokens import LEVEL_LABELS

STATIC_FOLDER = Path(__file__).with_name("static")
"""``base.css``, which the viewer serves and the report inlines."""
_FORMATS = ("percent", "points", "interval", "number", "seconds", "size")


def environment(*packages: str) -> Environment:
    """Return an environment with the templates of ``packages`` (first) and of the report."""
    templates = Environment(
        loader=ChoiceLoader([PackageLoader("repairgym", f"{name}/templates") for name in (*packages, "report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: inline(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    formats: dict[str, Any] = {name: getattr(wording, name) for name in _FORMATS}
    templates.filters.update(
        formats,
        block=block,
        plain=plain,
        phase=phase_label,
        stage=stage_label,
        test_set=label_of_test_set,
        heat=lambda share: Markup("--heat-share:{}%").format(round(100 * share)),
        percent_interval=lambda estimate: wording.percent_interval(estimate.ci_low, estimate.ci_high),
        spaced=lambda name: str(name).replace("_", " "),
    )
    templates.globals.update(
        version=__version__,
        stylesheet=lambda *names: Markup("\n".join((STATIC_FOLDER / name).read_text() for name in names)),
        marks={"passed": "✓", "failed": "✗", "exploited": "!", "invalid": "?"},
        level_labels=LEVEL_LABELS,
    )
    return templates
