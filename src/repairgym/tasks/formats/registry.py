"""The exchange formats by name; a new format is one line here and its name in `unbuilt.FormatName`.

A record that fits several formats gets the first: the more specific one.
"""

from repairgym.tasks.formats.base import Fields, Format, RecordError
from repairgym.tasks.formats.harbor import Harbor
from repairgym.tasks.formats.multi_swe import MultiSwe
from repairgym.tasks.formats.r2e_gym import R2eGym
from repairgym.tasks.formats.swe_bench import SweBench, SweGym, SweRebench, SweRebenchV2, SweSmith
from repairgym.tasks.formats.swe_bench_5 import SweBench5
from repairgym.tasks.unbuilt import FormatName

_CLASSES = (SweBench5, Harbor, MultiSwe, R2eGym, SweRebenchV2, SweRebench, SweSmith, SweBench, SweGym)
FORMATS: dict[FormatName, Format] = {cls.name: cls() for cls in _CLASSES}


def detect_format(fields: Fields) -> Format:
    """Return the format of ``fields``; RecordError if none fits."""
    for form in FORMATS.values():
        if form.matches(fields):
            return form
    raise RecordError(f"the fields {', '.join(sorted(fields)[:12]) or '(none)'} fit no format; name one with --format")
