"""The life of a child, as a table.

ABSENT ──start──→ STARTING ──ready──→ SERVING
                   ↑  │                  │
               start  died             died
                   │  ↓                  │
                   WAITING ←─────────────┘

STARTING, SERVING ──stop──→ STOPPING ──died──→ GONE ←──stop── ABSENT, WAITING
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from appliance.errors import ApplianceDefect


class State(StrEnum):
    """Where a child is. Only STARTING, SERVING and STOPPING have a process."""

    ABSENT = "absent"  # never forked yet
    STARTING = "starting"  # forked, has not said Ready
    SERVING = "serving"
    WAITING = "waiting"  # dead, its next life begins when the back-off is over
    STOPPING = "stopping"  # told to stop
    GONE = "gone"  # for good


class Event(StrEnum):
    START = "start"
    READY = "ready"
    DIED = "died"
    STOP = "stop"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.ABSENT, Event.START): State.STARTING,
    (State.ABSENT, Event.STOP): State.GONE,
    (State.STARTING, Event.READY): State.SERVING,
    (State.STARTING, Event.DIED): State.WAITING,
    (State.STARTING, Event.STOP): State.STOPPING,
    (State.SERVING, Event.DIED): State.WAITING,
    (State.SERVING, Event.STOP): State.STOPPING,
    (State.WAITING, Event.START): State.STARTING,
    (State.WAITING, Event.STOP): State.GONE,
    (State.STOPPING, Event.READY): State.STOPPING,  # it said so before it read the order
    (State.STOPPING, Event.STOP): State.STOPPING,  # told again, with less time
    (State.STOPPING, Event.DIED): State.GONE,
    (State.GONE, Event.STOP): State.GONE,
}

ALIVE = frozenset({State.STARTING, State.SERVING, State.STOPPING})


def after(state: State, event: Event) -> State:
    """The next state.

    Raises:
        ApplianceDefect: that event cannot happen in that state.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ApplianceDefect(f"a child cannot meet {event} while {state}") from None
