"""Delegation tokens through a real controller process: made, renewed, ended, swept; kept in Kafka's form."""

from __future__ import annotations

import dataclasses
import json
import resource
import time

import pytest
from msgspec.structs import replace

from appliance.channels.control_channel import CreateToken, ExpireToken, RenewToken, TokenOutcome
from appliance.cluster import DelegationToken
from appliance.config.sections.delegation_tokens import DelegationTokenSettings
from appliance.control.controller import token_commands
from appliance.control.controller.cluster_state import ClusterState
from appliance.control.controller.deciding import Turn
from appliance.control.controller.token_commands import plan_sweep, plan_token
from appliance.control.store.metadata_store import Create
from appliance.control.store.znode_tree import DELEGATION_TOKENS, TOKEN_PATHS
from appliance.protocol.errors import ErrorCode
from tests.control.controller.instance import Instance
from tests.control.controller.test_damage import without_room
from tests.control.controller.test_scram import store_of

SETTINGS = DelegationTokenSettings(secret_key="x", max_lifetime_ms=10_000, expiry_time_ms=1_000)
ALICE = "User:alice"


class Books:
    """A controller's books with no store behind them."""

    def __init__(self) -> None:
        self.state = ClusterState.__new__(ClusterState)
        self.state.set_tokens({})
        self.state.has_token_folder = False
        self.turn = Turn()

    def ask(self, request: CreateToken | RenewToken | ExpireToken, now_ms: int = 100) -> TokenOutcome:
        return plan_token(self.turn, self.state, SETTINGS, request, now_ms=now_ms)


def test_a_token_lives_as_long_as_the_settings_and_the_request_allow() -> None:
    books = Books()
    for number, (wanted_ms, max_ms, expires_ms) in enumerate(
        (
            (-1, 10_000, 1_000),
            (0, 10_000, 1_000),
            (500, 500, 500),
            (5_000, 5_000, 1_000),
            (2**62, 10_000, 1_000),
        )
    ):
        told = books.ask(CreateToken(f"id{number}", ALICE, ALICE, (), wanted_ms))
        assert told.token is not None
        assert (told.token.max_ms - 100, told.token.expires_ms - 100) == (max_ms, expires_ms)


def test_names_of_a_token_of_a_requester_and_of_all_are_bounded_in_bytes() -> None:
    """The largest token that passes fits into a node of the metadata store, whatever its characters."""
    books, long_name = Books(), "User:" + "\N{GRINNING FACE}" * 1_000
    renewers = tuple(f"{long_name}{number}" for number in range(8))
    assert books.ask(CreateToken("large", ALICE, ALICE, (*renewers, "User:bob"), 0)).error == 0
    change = books.turn.operations[-1]
    assert isinstance(change, Create)
    assert len(change.data) < 200_000
    assert books.ask(CreateToken("larger", ALICE, ALICE, (*renewers, "User:" + "x" * 1_000), 0)).error == (
        ErrorCode.POLICY_VIOLATION
    )
    made = 1
    while books.ask(CreateToken(f"more{made}", ALICE, ALICE, renewers, 0)).error == 0:
        made += 1
    assert made == token_commands.TOKENS_OF_REQUESTER_BYTES_MAX // 32_200
    assert books.ask(CreateToken("other", "User:bob", "User:bob", (), 0)).error == 0


def test_a_renewal_ends_at_the_maximum_and_an_end_may_be_earlier() -> None:
    books = Books()
    books.ask(CreateToken("id", ALICE, "User:carol", ("User:bob",), 1_500))
    assert books.ask(RenewToken("id", ALICE), 300).expires_ms == 1_300
    assert books.ask(RenewToken("id", "User:bob", 200), 300).expires_ms == 500
    assert books.ask(RenewToken("id", "User:bob", 200_000), 300).expires_ms == 1_300
    assert books.ask(RenewToken("id", ALICE), 900).expires_ms == 1_600
    assert books.ask(ExpireToken("id", ALICE, 50), 900).expires_ms == 950
    for wrong in ("User:carol", "User:dora"):
        assert books.ask(RenewToken("id", wrong), 900).error == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert books.ask(ExpireToken("id", wrong), 900).error == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert books.ask(RenewToken("no", ALICE), 900).error == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert books.ask(RenewToken("id", ALICE), 951).error == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert books.ask(ExpireToken("id", ALICE, 50), 951).error == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert books.ask(ExpireToken("id", ALICE, -1), 951) == TokenOutcome(expires_ms=951)
    assert books.state.shown_tokens == ()


def test_the_times_do_not_overflow() -> None:
    books = Books()
    settings = replace_times(2**63 - 1)
    told = plan_token(books.turn, books.state, settings, CreateToken("id", ALICE, ALICE), now_ms=100)
    assert told.token is not None
    assert told.token.max_ms == told.token.expires_ms == 2**63 - 1


def replace_times(longest_ms: int) -> DelegationTokenSettings:
    return DelegationTokenSettings(
        secret_key="x", max_lifetime_ms=longest_ms, expiry_time_ms=longest_ms, expiry_check_interval_ms=1
    )


def test_one_requester_cannot_use_up_what_there_is_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_commands, "TOKENS_OF_REQUESTER_MAX", 2)
    monkeypatch.setattr(token_commands, "TOKENS_MAX", 3)
    books = Books()
    wanted = (ALICE, ALICE, ALICE, "User:bob", "User:carol")
    told = [books.ask(CreateToken(f"id{n}", who, who)).error for n, who in enumerate(wanted)]
    full = ErrorCode.POLICY_VIOLATION
    assert told == [0, 0, full, 0, full]


def test_a_sweep_takes_what_has_expired_and_undoes_it_if_the_store_fails() -> None:
    books = Books()
    for number in range(3):
        books.ask(CreateToken(f"id{number}", ALICE, ALICE, (), 100 * (number + 1)))
    before = books.state.shown_tokens
    books.turn = Turn()
    gone = plan_sweep(books.turn, books.state, now_ms=301)
    assert [token.token_id for token in gone] == ["id0", "id1"]
    assert [token.token_id for token in books.state.shown_tokens] == ["id2"]
    assert len(books.turn.operations) == 2
    for undo in reversed(books.turn.undo):
        undo()
    assert books.state.shown_tokens == before


def ask(instance: Instance, request: CreateToken | RenewToken | ExpireToken) -> TokenOutcome:
    answer = instance.answer(instance.ask(request))
    assert isinstance(answer, TokenOutcome)
    return answer


def test_an_answered_change_is_in_the_image_and_in_the_store_in_kafkas_form(instance: Instance) -> None:
    first = ask(instance, CreateToken("one", "User:bob/~ ü", ALICE, (ALICE, "User:c")))
    assert [*instance.image.tokens] == [first.token]
    second = ask(instance, CreateToken("two", ALICE, ALICE))
    assert first.token is not None
    assert second.token is not None
    renewed = ask(instance, RenewToken("one", "User:c", 1_000))
    now = replace(first.token, expires_ms=renewed.expires_ms)
    assert [*instance.image.tokens] == [now, second.token]
    instance.stop()
    with store_of(instance) as store:
        assert json.loads(store.get(f"{DELEGATION_TOKENS}/one").data) == {
            "version": 3,
            "tokenId": "one",
            "owner": "User%3Abob%2F%7E%20%C3%BC",
            "tokenRequester": "User%3Aalice",
            "renewers": ["User%3Aalice", "User%3Ac"],
            "issueTimestamp": now.issued_ms,
            "maxTimestamp": now.max_ms,
            "expiryTimestamp": now.expires_ms,
        }
        assert all(store.exists(path) for path in TOKEN_PATHS)
        # What Kafka 3.2 and before wrote, and what nobody did.
        old = {"version": 2, "tokenId": "old", "owner": "User%3Ad", "renewers": [], "issueTimestamp": 1}
        old |= {"maxTimestamp": 3, "expiryTimestamp": 2}
        store.multi(
            [
                Create(f"{DELEGATION_TOKENS}/old", json.dumps(old).encode()),
                Create(f"{DELEGATION_TOKENS}/broken", b"{}"),
            ]
        )
    instance.start()
    instance.start_worker()
    assert ask(instance, ExpireToken("two", ALICE)).error == 0
    assert [*instance.image.tokens] == [DelegationToken("old", "User:d", "User:d", (), 1, 3, 2), now]


def test_a_full_disk_changes_nothing(instance: Instance) -> None:
    assert not ask(instance, CreateToken("one", ALICE, ALICE)).error
    instance.stop()
    instance.start(without_room(instance, more_bytes=200_000))
    instance.start_worker()
    before = instance.image.tokens
    renewers = tuple(f"User:{number}{'x' * 900}" for number in range(30))
    for number in range(30):
        told = ask(instance, CreateToken(f"more{number}", ALICE, ALICE, renewers))
        if told.error:
            break
    assert told.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert told.token is None
    kept = instance.image.tokens
    assert set(before) <= set(kept)
    assert f"more{number}" not in {token.token_id for token in kept}
    resource.prlimit(instance.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert not ask(instance, CreateToken("last", ALICE, ALICE)).error


def test_an_expired_token_is_swept_by_the_next_controller_too(instance: Instance) -> None:
    assert not ask(instance, CreateToken("short", ALICE, ALICE, (), 1)).error
    assert not ask(instance, CreateToken("long", ALICE, ALICE)).error
    instance.stop()
    swept = DelegationTokenSettings(secret_key="x", expiry_check_interval_ms=50)
    settings = dataclasses.replace(instance.settings, delegation_tokens=swept)
    instance.wiring = dataclasses.replace(instance.wiring, settings=settings)
    instance.start()
    instance.start_worker()
    deadline = time.monotonic() + 20
    while len(instance.image.tokens) != 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [token.token_id for token in instance.image.tokens] == ["long"]
