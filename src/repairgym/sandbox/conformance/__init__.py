"""Requirements on every back end, as checks that run the same way against each of them.

Reads a :class:`Site` (a back end, an environment with pytest, a tree made by :func:`make_tree`); a failed check raises
``AssertionError``. A new back end is complete when it passes all of :data:`CHECKS`.
"""

from repairgym.sandbox.conformance import attacks, commands, files, isolation, sessions, suites, views
from repairgym.sandbox.conformance.site import Check, Site, checks_of, make_environment, make_tree

CHECKS: tuple[Check, ...] = (
    *(check for module in (commands, sessions, files, suites, views) for check in checks_of(module)),
    *(check for module in (isolation, attacks) for check in checks_of(module, is_isolating_only=True)),
)

NOT_HELD: dict[tuple[str, str], str] = {
    ("container", "control_groups"): "container engines mount /sys and the control groups, read-only",
    ("container", "host_processes_and_kernel"): "a process may raise its own oom_score_adj",
    ("container", "many_small_files"): "engines bound the bytes of a tmpfs and the memory, not the number of files",
    ("image", "environment_is_read_only"): "commands change a copy of the image that no test sees",
    ("image", "tools"): "an image has tools of its own",
    ("image", "no_upgrades"): "commands may install into their own copy of the image, which no test sees",
}
"""(back end, check) -> reason why it fails there; ``image``: namespace over an image. Checks of operations that a back
end lacks are not listed."""

__all__ = ["CHECKS", "NOT_HELD", "Check", "Site", "checks_of", "make_environment", "make_tree"]
