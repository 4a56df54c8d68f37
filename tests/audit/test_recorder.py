"""Entries on their way: bounded, counted where they find no room, and without a wait."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from appliance.audit.entry import DENIED, DONE, FAILED, RESOURCES_MAX, TEXT_CHARACTERS_MAX, Resource, resource
from appliance.audit.recorder import FLUSH_MS, MESSAGE_BYTES_MAX, QUEUE_BYTES_MAX, RETRY_MS, Recorder
from appliance.audit.repeats import INTERVAL_NS
from appliance.clock import ManualClock
from appliance.config.sections.audit import EVENTS, AuditSettings
from appliance.ipc.agent import Timers
from appliance.protocol.errors import ErrorCode


@dataclass
class Client:
    principal: str = "User:alice"
    host: str = "10.0.0.7"
    peer_port: int = 5
    listener: str = "EXTERNAL"
    client_id: str | None = "ops"
    connection_id: int = 9


@dataclass
class Desk:
    """A recorder whose writer is the test."""

    settings: AuditSettings
    clock: ManualClock = field(default_factory=ManualClock)
    messages: list[bytes] = field(default_factory=list)
    is_open: bool = True
    recorder: Recorder = field(init=False)
    timers: Timers = field(init=False)

    def __post_init__(self) -> None:
        self.timers = Timers(self.clock.monotonic_ns)
        self.recorder = Recorder(
            self.settings, self.clock, process="netproc 0", after_ms=self.timers.after_ms, send=self._send
        )

    def _send(self, lines: bytes) -> bool:
        if self.is_open:
            self.messages.append(lines)
        return self.is_open

    def wait_ms(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.timers.run_due(self.clock.monotonic_ns())

    def entries(self) -> list[dict[str, Any]]:
        """Return what has arrived since the last time."""
        messages, self.messages = self.messages, []
        return [json.loads(line) for message in messages for line in message.splitlines()]

    def refuse(self, name: str = "orders", client: Client | None = None) -> None:
        denied = Resource("topic", name, DENIED, operation="write")
        self.recorder.refusal(client or Client(), api="Produce", version=9, resources=[denied], count=1)

    def change(self, *resources: Resource) -> None:
        for _ in self.recorder.change(Client(), api="CreateTopics", version=7, resources=resources):
            pass

    def commit(self, *resources: Resource) -> None:
        for _ in self.recorder.change(
            Client(), api="OffsetCommit", version=9, resources=resources, is_daily=True
        ):
            pass


def desk(**options: Any) -> Desk:
    return Desk(AuditSettings(**{"events": EVENTS, **options}))


def test_entries_for_which_no_rights_are_needed_are_bounded_by_principal() -> None:
    """Else one client could push everybody's entries out of the journal."""
    made = desk(repeats_max=3)
    made.commit(*(resource("partition", f"t-{number}", 0) for number in range(RESOURCES_MAX * 10)))
    made.change(resource("topic", "orders", 0))
    made.wait_ms(FLUSH_MS)
    entries = made.entries()
    assert [entry["api"] for entry in entries] == ["OffsetCommit"] * 3 + ["CreateTopics"]
    made.wait_ms(60_001)
    made.wait_ms(FLUSH_MS)
    told = [entry for entry in made.entries() if entry["event"] == "repeats"]
    assert [(entry["of"], entry["count"]) for entry in told] == [("change", 7)]


def test_an_entry_says_who_did_what_from_where_and_how_it_ended() -> None:
    made = desk()
    made.change(
        resource("topic", "orders", 0, {"partitions": 3, "gone": None}),
        resource("topic", "a/b", int(ErrorCode.INVALID_TOPIC_EXCEPTION)),
        resource("topic", "other", int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)),
    )
    made.wait_ms(FLUSH_MS)
    (entry,) = made.entries()
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "event": "change",
        "result": FAILED,
        "principal": "User:alice",
        "host": "10.0.0.7",
        "port": 5,
        "listener": "EXTERNAL",
        "client": "ops",
        "connection": 9,
        "api": "CreateTopics",
        "version": 7,
        "resources": [
            {"type": "topic", "name": "orders", "result": DONE, "detail": {"partitions": "3"}},
            {
                "type": "topic",
                "name": "a/b",
                "result": FAILED,
                "error": "INVALID_TOPIC_EXCEPTION",
                "code": 17,
            },
            {
                "type": "topic",
                "name": "other",
                "result": DENIED,
                "error": "TOPIC_AUTHORIZATION_FAILED",
                "code": 29,
            },
        ],
        "process": "netproc 0",
    }


def test_a_request_of_which_nothing_was_allowed_is_no_change() -> None:
    made = desk()
    made.change(resource("topic", "orders", int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)))
    made.wait_ms(FLUSH_MS)
    assert made.entries() == []


def test_a_large_request_has_several_entries_and_long_texts_are_cut() -> None:
    made = desk()
    made.change(*(resource("topic", "t" * 9999, 0) for _ in range(RESOURCES_MAX + 1)))
    made.wait_ms(FLUSH_MS)
    entries = made.entries()
    assert [len(each["resources"]) for each in entries] == [RESOURCES_MAX, 1]
    assert len(entries[1]["resources"][0]["name"]) == TEXT_CHARACTERS_MAX


@pytest.mark.parametrize("text", ["line\nbreak", 'a"b\\', "\x00\x7f\u2028", "ü\U0001f600"])
def test_what_a_client_sent_stays_in_its_line(text: str) -> None:
    made = desk()
    made.refuse(text, Client(principal=f"User:{text}", client_id=text))
    made.wait_ms(FLUSH_MS)
    assert [message.count(b"\n") for message in made.messages] == [1]
    (entry,) = made.entries()
    assert (entry["client"], entry["resources"][0]["name"]) == (text, text)


@pytest.mark.parametrize(
    ("event", "expected"),
    [("authentications", "authentication"), ("refusals", "refusal"), ("changes", "change")],
)
def test_only_what_was_asked_for_is_recorded(event: str, expected: str) -> None:
    made = desk(events=(event,))
    made.refuse()
    made.change(resource("topic", "orders", 0))
    made.recorder.authentication(
        principal="User:a", host="h", port=1, listener="L", mechanism="SSL", connection=1
    )
    made.wait_ms(FLUSH_MS)
    assert [each["event"] for each in made.entries()] == [expected]


def test_a_flood_of_refusals_of_one_principal_is_counted_and_told() -> None:
    made = desk(repeats_max=5)
    for _ in range(1000):
        made.refuse()
    made.refuse(client=Client(principal="User:bob"))
    made.wait_ms(FLUSH_MS)
    entries = made.entries()
    assert [each["principal"] for each in entries] == ["User:alice"] * 5 + ["User:bob"]
    made.wait_ms(INTERVAL_NS // 10**6 + 1)
    made.wait_ms(FLUSH_MS)
    (told,) = made.entries()
    assert (told["event"], told["of"], told["principal"]) == ("repeats", "refusal", "User:alice")
    assert (told["count"], told["seconds"]) == (995, 60)


def test_who_fails_to_authenticate_is_limited_by_its_address_not_by_the_name_that_it_claims() -> None:
    made = desk(repeats_max=5)
    for number in range(100):
        made.recorder.authentication(
            principal=f"User:{number}",
            host="h",
            port=1,
            listener="L",
            mechanism="PLAIN",
            error="wrong password",
        )
    made.wait_ms(FLUSH_MS)
    assert len(made.entries()) == 5


def test_entries_that_the_writer_does_not_take_wait_and_are_bounded_and_counted() -> None:
    made = desk(repeats_max=1_000_000)
    made.is_open = False
    for _ in range(20_000):
        made.refuse("t" * 200)
    made.wait_ms(FLUSH_MS)
    queued = made.recorder.statistics()["queued"]
    assert made.recorder.statistics()["queued_bytes"] <= QUEUE_BYTES_MAX
    assert made.recorder.lost == 20_000 - queued > 0
    made.is_open = True
    made.wait_ms(RETRY_MS)
    assert all(len(message) <= MESSAGE_BYTES_MAX for message in made.messages)
    *entries, told = made.entries()
    assert len(entries) == queued
    assert (told["event"], told["count"]) == ("lost", 20_000 - queued)
    assert made.recorder.statistics()["queued_bytes"] == 0
    made.refuse()
    made.wait_ms(FLUSH_MS)
    assert [each["event"] for each in made.entries()] == ["refusal"]


def test_what_is_left_is_sent_at_the_end() -> None:
    made = desk(repeats_max=1)
    made.refuse()
    made.refuse()
    made.recorder.close()
    assert [each["event"] for each in made.entries()] == ["refusal", "repeats"]


def test_nothing_is_armed_when_nothing_happens() -> None:
    made = desk()
    made.refuse()
    made.wait_ms(FLUSH_MS)
    made.wait_ms(INTERVAL_NS // 10**6 + 1)
    assert made.timers.next_due_ns() is None
