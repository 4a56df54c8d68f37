"""Tokens, keys and time: rotation, re-authentication, an identity provider that fails, and attackers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.sasl_authenticate import SaslAuthenticateRequest
from appliance.protocol.apis.sasl_handshake import SaslHandshakeRequest
from tests.support.bearer import AUTHENTICATE, HANDSHAKE, Answer, answer, asked, authenticated, bearer
from tests.support.broker import Appliance
from tests.support.identity_provider import IdentityProvider, SigningKey, good_claims, key_set
from tests.support.wire import PATIENCE_S, ConnectionEnded, WireSocket, answers_api_versions, free_ports

ONE: Final = SigningKey("one")
TWO: Final = SigningKey("two")
INVALID: Final = '{"status":"invalid_token"}'
REJECTED: Final = Answer(58, INVALID, INVALID.encode())
URL: Final = "sasl.oauthbearer.jwks.endpoint.url"


class Scene:
    """An appliance with a listener in plain text and one with tokens."""

    def __init__(self, directory: Path, url: str, **more: object) -> None:
        self.port = free_ports(2)
        self.tokens_port = self.port + 1
        self.broker = Appliance(
            directory / "data",
            port=self.port,
            settings={
                "listeners": [
                    f"PLAINTEXT://127.0.0.1:{self.port}",
                    f"SASL_PLAINTEXT://127.0.0.1:{self.tokens_port}",
                ],
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "connection.failed.authentication.delay.ms": 0,
                URL: url,
                **more,
            },
        )

    def answer(self, token: str) -> Answer:
        return answer(self.tokens_port, bearer(token))

    def waits_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.broker.output()
            time.sleep(0.05)

    def prints(self, line: str) -> bool:
        return line in self.broker.output()

    def accepts(self, key: SigningKey = ONE) -> bool:
        return self.answer(key.token()).code == 0


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider(key_set(ONE)) as served:
        yield served


@pytest.fixture
def scene(tmp_path: Path, provider: IdentityProvider) -> Iterator[Scene]:
    made = Scene(tmp_path, provider.url)
    made.broker.start()
    made.waits_for(made.accepts)
    yield made
    made.broker.stop()


def test_a_rotated_key_is_found_by_the_first_token_that_needs_it(
    scene: Scene, provider: IdentityProvider
) -> None:
    provider.document = key_set(ONE, TWO)
    assert scene.answer(TWO.token()) == REJECTED
    scene.waits_for(lambda: scene.accepts(TWO))
    assert scene.accepts(ONE)
    assert len(provider.requests) == 2
    assert "its access token is refused: its key 'two' is unknown" in scene.broker.output()


def test_a_flood_of_unknown_keys_asks_the_identity_provider_once(
    scene: Scene, provider: IdentityProvider
) -> None:
    stranger = SigningKey(None)
    for number in range(200):
        assert scene.answer(stranger.token(header={"kid": f"made-up-{number}"})) == REJECTED
    assert scene.accepts()
    assert len(provider.requests) <= 3


def test_an_identity_provider_that_hangs_or_fails_stops_nobody(
    scene: Scene, provider: IdentityProvider
) -> None:
    provider.answer = lambda handler: time.sleep(60)
    assert scene.answer(TWO.token()) == REJECTED  # has the keys fetched
    scene.waits_for(lambda: len(provider.requests) >= 2)
    began = time.monotonic()
    for _ in range(20):
        assert scene.accepts()
    assert time.monotonic() - began < 5.0
    scene.waits_for(lambda: "it does not answer in time" in scene.broker.output())
    assert scene.accepts()
    assert "the last keys stay in use" in scene.broker.output()


def test_a_start_does_not_wait_for_the_keys_and_no_client_is_refused_for_good_before_them(
    tmp_path: Path,
) -> None:
    with IdentityProvider(b"") as unused:
        port, url = unused.port, unused.url
    scene = Scene(tmp_path, url)
    scene.broker.start()
    assert scene.answer(ONE.token()) == Answer(None), (
        "closed, without an error that a client would take for final"
    )
    assert scene.answer("garbage") == REJECTED
    delivered: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{scene.tokens_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "OAUTHBEARER",
            "oauth_cb": lambda _: (ONE.token(), time.time() + 3600),
        }
    )
    producer.produce("late", b"value", on_delivery=lambda error, _: delivered.append(error))
    producer.poll(1)
    assert delivered == []
    with IdentityProvider(key_set(ONE), port=port):
        assert producer.flush(PATIENCE_S) == 0
    assert delivered == [None]
    scene.broker.stop()


def test_the_keys_stay_while_the_key_process_is_dead_and_it_comes_back(
    scene: Scene, provider: IdentityProvider
) -> None:
    for life in (2, 3):
        key_process = next(row for row in scene.broker.processes() if row.role == "keys")
        os.kill(key_process.pid, signal.SIGKILL)
        assert scene.accepts()
        line = f"keys is running again as generation {life}"
        scene.waits_for(partial(scene.prints, line))
    provider.document = key_set(TWO)
    scene.waits_for(lambda: scene.accepts(TWO))
    assert scene.answer(ONE.token()) == REJECTED


def test_a_file_of_keys_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(ONE))
    scene = Scene(tmp_path, f"file://{path}")
    scene.broker.start()
    scene.waits_for(scene.accepts)
    path.write_bytes(key_set(TWO))
    scene.waits_for(lambda: scene.accepts(TWO))
    assert not scene.accepts(ONE)
    scene.broker.stop()


# A session ends with its token


def short_token(life_s: int, **changed: Any) -> str:
    """A token whose life is over so soon; the appliance would accept it for the skew of clocks longer."""
    now_s = int(time.time())
    return ONE.token({**good_claims(now_s), "exp": now_s + life_s, **changed})


def serves(connection: WireSocket) -> bool:
    """Whether a request is answered. The connection is closed without an answer otherwise."""
    try:
        connection.send_request(18, 0, b"", flexible=False)
        connection.read_frame()
    except (ConnectionEnded, OSError):
        return False
    return True


def test_a_session_lasts_as_long_as_its_token(scene: Scene) -> None:
    with WireSocket(scene.tokens_port) as connection:
        done = authenticated(connection, bearer(short_token(3)))
        assert done.code == 0
        assert 1000 < done.lifetime_ms <= 3000
        assert serves(connection)
        time.sleep(done.lifetime_ms / 1000 + 0.2)
        assert not serves(connection)


def test_a_client_authenticates_again_on_its_connection(scene: Scene) -> None:
    with WireSocket(scene.tokens_port) as connection:
        assert authenticated(connection, bearer(short_token(2))).code == 0
        for _ in range(3):
            time.sleep(1.2)
            again = authenticated(connection, bearer(short_token(2)))
            assert again.code == 0
            assert again.lifetime_ms <= 2000
            assert serves(connection)


def test_a_bad_token_ends_a_session_that_authenticates_again(scene: Scene) -> None:
    with WireSocket(scene.tokens_port) as connection:
        assert authenticated(connection, bearer(short_token(10))).code == 0
        time.sleep(1.1)
        assert authenticated(connection, bearer(TWO.token())) == REJECTED
        assert not serves(connection)


def test_nobody_becomes_another_principal_by_a_new_token(scene: Scene) -> None:
    with WireSocket(scene.tokens_port) as connection:
        assert authenticated(connection, bearer(short_token(10))).code == 0
        time.sleep(1.1)
        again = authenticated(connection, bearer(short_token(10, sub="root")))
        assert again.code == 58
        assert not serves(connection)


def test_librdkafka_goes_on_over_the_ends_of_its_tokens(scene: Scene) -> None:
    given: list[float] = []

    def give(config: str) -> tuple[str, float]:
        given.append(time.monotonic())
        return short_token(3), time.time() + 3

    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{scene.tokens_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "OAUTHBEARER",
            "oauth_cb": give,
            "linger.ms": 0,
        }
    )
    until = time.monotonic() + 8
    count = 0
    while time.monotonic() < until:
        producer.produce("on", b"value", on_delivery=lambda error, _: failures.append(error))
        count += 1
        producer.poll(0.05)
    assert producer.flush(PATIENCE_S) == 0
    assert failures == [None] * count
    assert len(given) >= 3


# Attackers


def test_a_message_in_pieces_and_one_that_is_too_large(scene: Scene) -> None:
    with WireSocket(scene.tokens_port) as connection:
        assert asked(connection, HANDSHAKE, 1, SaslHandshakeRequest("OAUTHBEARER")).error_code == 0
        huge = SaslAuthenticateRequest(bearer("x" * 600_000))
        with pytest.raises((ConnectionEnded, OSError)):
            asked(connection, AUTHENTICATE, 2, huge)
    assert scene.answer("x" * 500_000) == REJECTED
    assert scene.accepts()


def test_requests_before_the_token_is_accepted_are_not_served(scene: Scene) -> None:
    with WireSocket(scene.tokens_port) as connection:
        assert asked(connection, HANDSHAKE, 1, SaslHandshakeRequest("OAUTHBEARER")).error_code == 0
        first = asked(connection, AUTHENTICATE, 2, SaslAuthenticateRequest(bearer(TWO.token())))
        assert first.auth_bytes == INVALID.encode()
        connection.send_request(int(ApiKey.METADATA), 0, b"\0\0\0\0", flexible=False)
        assert connection.ends_without_an_answer()


def test_tokens_that_fail_do_not_slow_clients_that_have_logged_in(scene: Scene) -> None:
    """Four connections send the largest bad tokens without a pause."""
    token = ONE.token(groups=["x" * 1000] * 45)
    bad = bearer(token[:-3] + ("AAA" if token[-3:] != "AAA" else "BBB"))
    is_over = threading.Event()

    def attack() -> None:
        while not is_over.is_set():
            with suppress(OSError):
                answer(scene.tokens_port, bad)

    attackers = [threading.Thread(target=attack) for _ in range(4)]
    for each in attackers:
        each.start()
    try:
        slowest = 0.0
        with WireSocket(scene.tokens_port) as connection:
            assert authenticated(connection, bearer(ONE.token())).code == 0
            until = time.monotonic() + 3
            while time.monotonic() < until:
                began = time.monotonic()
                assert serves(connection)
                slowest = max(slowest, time.monotonic() - began)
    finally:
        is_over.set()
        for each in attackers:
            each.join()
    assert slowest < 1.0
    assert answers_api_versions(scene.port, PATIENCE_S)
