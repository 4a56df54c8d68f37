"""What quotas cost a request while there are none, counted by the instructions that it executes, and not by time."""

from __future__ import annotations

import dis
import struct
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, Final, cast

import pytest

from appliance.build import PURE, build
from appliance.netproc.processor import NetworkAgent
from appliance.protocol.records.record import Record, encode_batch
from appliance.requests.session import Request, Session
from tests.requests.serving import TOPIC, Serving, serving
from tests.support.wire import nullable_string
from tests.system.raw import produce_frame

OF_QUOTAS: Final = frozenset({"_meter", "meter", "_metering", "throttled_until_ns", "_quotas", "_on_image"})
METERING: Final = (
    "requests/meter.py",
    "netproc/metering.py",
    "ipc/rate_samples.py",
    "access/client_quotas.py",
)


def looked_at(work: Callable[[], object]) -> tuple[Counter[str], set[str]]:
    """How often each attribute of quotas was loaded, and the files of quotas that anything was called in."""
    loads: Counter[str] = Counter()
    files: set[str] = set()
    names: dict[CodeType, dict[int, str]] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if event == "call":
            frame.f_trace_opcodes = True
            files.update(name for name in METERING if code.co_filename.endswith(name))
        elif event == "opcode":
            if code not in names:
                names[code] = {
                    each.offset: each.argval
                    for each in dis.get_instructions(code)
                    if each.opname in {"LOAD_ATTR", "LOAD_METHOD"}
                }
            name = names[code].get(frame.f_lasti)
            if name in OF_QUOTAS:
                loads[name] += 1
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return loads, files


def fetch_frame() -> bytes:
    head = struct.pack(">hhi", 1, 11, 1) + nullable_string("raw")
    wanted = (
        struct.pack(">iiiibii", -1, 0, 0, 1 << 20, 0, 0, -1) + struct.pack(">i", 1) + nullable_string(TOPIC)
    )
    wanted += struct.pack(">iiiqqi", 1, 0, -1, 0, -1, 1 << 20) + struct.pack(">i", 0) + nullable_string("")
    body = head + wanted
    return struct.pack(">i", len(body)) + body


def finished(session: Session, pending: Request) -> None:
    """The network process's own end of a request, with what it needs of a network process."""
    agent = SimpleNamespace(_pool=None, _meter=None, _answered=set())
    pending.block = None
    NetworkAgent._finish(cast(Any, agent), pending, [b"answer"])
    assert session in agent._answered


@pytest.mark.parametrize("kind", ["produce", "produce again", "fetch"])
def test_without_a_quota_a_request_pays_one_look_at_an_attribute(tmp_path: Path, kind: str) -> None:
    with serving(tmp_path) as made:
        frame = fetch_frame() if kind == "fetch" else produce_frame(TOPIC, encode_batch([Record(b"value")]))
        client = made.session()
        assert made.routes.version  # a new image is looked at once
        if kind == "produce again":  # its bytes are remembered by then
            made.serve(client, frame)
            made.placed()
        loads, files = looked_at(lambda: work(made, client, frame))
    assert not files
    # The interpreter sees no instruction of the compiled build, which has the same source.
    assert loads == ({"_meter": 1} if build() == PURE else {})


def work(made: Serving, client: Session, frame: bytes) -> None:
    client.queue = None
    finished(client, made.serve(client, frame))


def test_the_count_can_tell() -> None:
    thing = SimpleNamespace(_meter=None, meter=SimpleNamespace(meter=1))
    loads, _ = looked_at(lambda: (thing._meter, thing.meter.meter))
    assert loads == {"_meter": 1, "meter": 2}
