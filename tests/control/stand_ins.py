"""Stand-in processes for the supervisor's tests: real forks, real sockets, nothing of Kafka.

Each life tells every event to the datagram socket `STAGE/diary.sock` as one JSON object; how it behaves is read from
`STAGE/<role token>.behaviour`:

    (none)    says Ready, answers heartbeats, stops when told
    crash     raises before it is ready
    fails     says Failed and leaves
    fatal     raises an OperatorFault
    leaves N  says Ready and leaves with code 7, in every generation up to N
    babbles   says Ready twice, and in its first life something that is no message
    levels L  says Ready and that all shall log from the level L
    deaf      says Ready and never reads its socket again
    long N    in its first life works for N ms, a little at a time, before it reads its socket
    slow N    waits for N ms before it obeys Stop or the end of its supervisor
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from appliance.channels.child import EXIT_CANNOT_START, EXIT_CLEAN, Child
from appliance.channels.supervision import Failed, Heartbeat, LogLevels, PeerDown, PeerUp, Ready, Stop
from appliance.channels.wiring import Attachment
from appliance.errors import OperatorFault

STAGE = "STAND_IN_STAGE"
DIARY = "diary.sock"


_prepared_by: list[int] = []


def before_fork() -> None:
    """Notes in which process it was called."""
    _prepared_by.append(os.getpid())


def run(child: Child) -> int:
    """A process that tells what it is told."""
    stage = Path(os.environ[STAGE])
    diary = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    diary.connect(str(stage / DIARY))

    def note(event: str, **facts: object) -> None:
        told = {
            "role": str(child.role),
            "generation": child.generation,
            "event": event,
            "at_ns": time.monotonic_ns(),
        }
        diary.send(json.dumps(told | facts).encode())

    behaviour_file = stage / f"{child.role.token}.behaviour"
    behaviour, *numbers = (behaviour_file.read_text() if behaviour_file.exists() else "obeys").split()
    peers = {str(role): generation for role, generation in child.peers.items()}
    note("born", pid=os.getpid(), peers=peers, prepared_by=_prepared_by, collects=gc.isenabled())
    match behaviour:
        case "crash":
            raise RuntimeError("the stand-in was told to\ncrash")
        case "fails":
            child.supervision.send(Failed("the stand-in has no wish to start"))
            return EXIT_CANNOT_START
        case "fatal":
            raise OperatorFault("the log directory belongs to another cluster")
    attachment = child.attach()
    note("attached", rings=len(attachment.inbound) + len(attachment.outbound))
    child.supervision.send(Ready())
    if behaviour == "leaves" and child.generation <= int(numbers[0]):
        return 7
    if behaviour == "babbles":
        child.supervision.send(Ready())
        if child.generation == 1:
            os.write(child.supervision.fileno(), b"{]")
    if behaviour == "levels":
        child.supervision.send(LogLevels({"root": numbers[0]}))
    while behaviour == "deaf":
        signal.pause()
    if behaviour == "long" and child.generation == 1:
        for _ in range(int(numbers[0]) // 100):
            time.sleep(0.1)
    return _obey(child, attachment, note=note, slow_ms=int(numbers[0]) if behaviour == "slow" else 0)


def _obey(child: Child, attachment: Attachment, *, note: Callable[..., None], slow_ms: int) -> int:
    poll = select.poll()
    poll.register(child.supervision.fileno(), select.POLLIN)
    while True:
        poll.poll()
        messages = child.supervision.receive()
        if messages is None:
            note("orphaned")
            time.sleep(slow_ms / 1000)
            return EXIT_CLEAN
        for message in messages:
            match message:
                case PeerDown():
                    attachment.peer_down(message.role)
                    note("down", peer=str(message.role), peer_generation=message.generation)
                case PeerUp():
                    attachment.peer_up(message.role, message.generation)
                    rings = len(attachment.inbound) + len(attachment.outbound)
                    note("up", peer=str(message.role), peer_generation=message.generation, rings=rings)
                case Heartbeat():
                    child.supervision.send(message)
                    note("heartbeat")
                case LogLevels():
                    note("levels", levels=message.levels)
                case Stop():
                    note("stop", within_ms=message.within_ms)
                    time.sleep(slow_ms / 1000)
                    return EXIT_CLEAN
