"""What a session may do, as OPENED tells its client, and what follows from that for ZeroMQ's queues."""

from __future__ import annotations

from typing import Final

from appliance.config import Settings
from appliance.gateway.frames import FRAMES_MAX, Opened
from appliance.gateway.session_numbers import new_mark
from appliance.gateway.window import MESSAGE_BYTES_MIN, Outstanding, Window

RECEIVED_MAX: Final = 64
"""Messages of one client that ZeroMQ keeps for us before it stops reading its connection."""
_BESIDE_WINDOW: Final = 4096
"""Messages that do not count towards a window, such as confirmations. A client that leaves more unread is cut off."""
_HEARTBEAT_PART: Final = 5
_WINDOWS_MAX: Final = 64
"""So many of the largest windows may be outstanding for all clients of a process together."""


def sent_max(settings: Settings) -> int:
    """Return how many messages ZeroMQ keeps for one client: more than the largest window has.

    So ZeroMQ refuses no message of a session whose client keeps to its window.
    """
    return settings.zeromq.window_max_bytes // MESSAGE_BYTES_MIN + _BESIDE_WINDOW


def outstanding_max(settings: Settings) -> int:
    """Return how many bytes may be sent and not acknowledged, for all clients of a process together."""
    return _WINDOWS_MAX * settings.zeromq.window_max_bytes


def new_window(wanted_bytes: int, settings: Settings, outstanding: Outstanding) -> Window:
    """Return the window of a session whose client wants one of `wanted_bytes`."""
    window_max = settings.zeromq.window_max_bytes
    return Window(wanted_bytes, window_max=window_max, new_mark=new_mark, outstanding=outstanding)


def opened(token: bytes, settings: Settings) -> Opened:
    """Return the answer to OPEN."""
    zeromq, network = settings.zeromq, settings.network
    return Opened(
        token,
        requests_max=network.requests_in_flight_per_connection,
        request_bytes_max=network.request_max_bytes,
        bytes_in_flight_max=zeromq.bytes_in_flight_max,
        window_max=zeromq.window_max_bytes,
        frames_max=FRAMES_MAX,
        heartbeat_interval_ms=zeromq.session_timeout_ms // _HEARTBEAT_PART,
        session_timeout_ms=zeromq.session_timeout_ms,
    )
