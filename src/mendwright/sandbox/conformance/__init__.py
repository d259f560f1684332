"""What every back end must do: checks that run the same way against each of them.

Reads a :class:`Site` (a back end, an environment with pytest, a tree made by :func:`make_tree`), makes nothing; a check
that does not hold raises ``AssertionError``. A new back end is done when all of :data:`CHECKS` hold for it.
"""

from mendwright.sandbox.conformance import attacks, commands, files, isolation, patches, sessions, snapshots, suites
from mendwright.sandbox.conformance.site import Check, Site, make_tree

CHECKS: tuple[Check, ...] = (
    *commands.CHECKS,
    *sessions.CHECKS,
    *files.CHECKS,
    *patches.CHECKS,
    *snapshots.CHECKS,
    *suites.CHECKS,
    *isolation.CHECKS,
    *attacks.CHECKS,
)

__all__ = ["CHECKS", "Check", "Site", "make_tree"]
