"""A person's link over slots that are down, hang, or close idle connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.console.kafka_link import BrokerFault, Link, exchange, not_done
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from tests.support.wire import PATIENCE_S

FRAME = b"\0\0\0\4\0\0\0\1"


class Slots:
    """Slots that answer every frame with itself; those in `down` refuse connections."""

    def __init__(self, count: int) -> None:
        self.slots = count
        self.down: set[int] = set()
        self.silent: set[int] = set()
        self.connected: list[int] = []
        self.peers: list[socket.socket] = []

    def connect(self, slot: int) -> socket.socket:
        self.connected.append(slot)
        if slot in self.down:
            raise BrokerFault(f"broker slot {slot} does not answer")
        ours, theirs = socket.socketpair()
        ours.settimeout(0.2 if slot in self.silent else PATIENCE_S)
        self.peers.append(theirs)
        if slot not in self.silent:
            threading.Thread(target=self._answer, args=(theirs,), daemon=True).start()
        return ours

    def _answer(self, peer: socket.socket) -> None:
        while received := peer.recv(1000):
            peer.sendall(received)

    def close(self) -> None:
        for each in self.peers:
            each.close()


@pytest.fixture
def slots() -> Iterator[Slots]:
    found = Slots(3)
    yield found
    found.close()


def ask(link: Link, *, slot: int | None = None, is_repeatable: bool = False) -> Any:
    return link.use(lambda each: exchange(each, FRAME), slot=slot, is_repeatable=is_repeatable)


def test_a_change_goes_to_a_slot_that_answers_if_the_first_one_is_down(slots: Slots) -> None:
    slots.down = {0}
    assert ask(Link(slots, None)) == FRAME  # type: ignore[arg-type]
    assert slots.connected == [0, 1]


def test_a_slot_that_hangs_is_asked_once_only(slots: Slots) -> None:
    slots.silent = {0}
    link = Link(slots, None)  # type: ignore[arg-type]
    for _ in range(3):
        assert ask(link, is_repeatable=True) == FRAME
    assert slots.connected == [0, 1]


def test_a_change_that_was_sent_is_not_sent_again_and_nobody_says_that_it_was_not_made(slots: Slots) -> None:
    slots.silent = {0}
    with pytest.raises(BrokerFault) as caught:
        ask(Link(slots, None))  # type: ignore[arg-type]
    assert slots.connected == [0]
    assert "may have been made" in not_done("the rule was not added", caught.value)


def test_an_idle_connection_that_the_broker_has_closed_does_not_fail_a_change(slots: Slots) -> None:
    link = Link(slots, None)  # type: ignore[arg-type]
    assert ask(link, slot=2) == FRAME
    slots.peers[0].shutdown(socket.SHUT_RDWR)
    assert ask(link, slot=2) == FRAME
    assert slots.connected == [2, 2]


def test_a_text_that_no_request_can_hold_is_refused_and_no_defect(slots: Slots) -> None:
    link = Link(slots, None)  # type: ignore[arg-type]
    body = MetadataRequest((TopicSelector("x" * 40_000),))
    with pytest.raises(BrokerFault, match="nothing was sent: a string of 40000 bytes does not fit") as caught:
        link.ask(ApiKey.METADATA, 12, body)
    assert not caught.value.is_sent
    assert slots.connected == []
