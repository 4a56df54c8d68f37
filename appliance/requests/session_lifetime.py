"""What a session knows of its end. `reauthentications` says more."""

from __future__ import annotations


class SessionLifetime:
    """A session with one of these ends unless its client authenticates again."""

    __slots__ = ()
