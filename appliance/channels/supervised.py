"""What a process that only serves others does at the supervisor's words: coordinator, purgatory and cleaner.

| word | then |
|---|---|
| PeerUp | rings of its new generation may be there (`Attachment.peer_up`) |
| PeerDown | what was shared with it is let go of, if it was with that generation |
| Stop, or the end of the socket | it stops in good order |
| Heartbeat | it is sent back: the process runs |

Workers, replicas and network processes have more to say to some of these, and read them in their own duty cycles.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.channels.roles import Role
from appliance.channels.supervision import Heartbeat, PeerDown, PeerUp, Stop, SupervisionSocket
from appliance.channels.wiring import Attachment


def obey_supervisor(
    supervision: SupervisionSocket,
    attachment: Attachment,
    *,
    peer_up: Callable[[Role, int], object],
    peer_down: Callable[[Role], object],
    stop: Callable[[], object],
    warn: Callable[[str], object],
) -> None:
    """Carries out what the supervisor has said."""
    messages = supervision.receive()
    if messages is None:
        warn("the supervisor is gone; stopping")
        stop()
        return
    for message in messages:
        match message:
            case PeerUp():
                peer_up(message.role, message.generation)
            case PeerDown():
                if attachment.generations.get(message.role) == message.generation:
                    peer_down(message.role)
            case Stop():
                stop()
            case Heartbeat():
                supervision.send(message)
            case _:
                warn(f"unexpected word of the supervisor: {message}")
