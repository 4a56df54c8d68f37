"""The error of a name that has come to mean another file. Alone here: mypyc compiles no class with such a base."""

from __future__ import annotations

from appliance.errors import HostFault


class SegmentReplaced(HostFault):
    """The owner has put another file into the place of the one it spoke of: compaction. Ask again."""
