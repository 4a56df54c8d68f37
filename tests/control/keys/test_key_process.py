"""The key process as the supervisor starts it: what it publishes, and that nothing an endpoint does ends it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from appliance.channels.key_channel import PublishedKeys, published_keys
from appliance.channels.roles import KEYS, Role, RoleKind
from appliance.channels.wiring import Wiring
from appliance.sasl.key_set import KeySet
from tests.process.started import Started
from tests.support.identity_provider import IdentityProvider, SigningKey, key_set

PATIENCE_S: Final = 20.0
ONE: Final = SigningKey("one")
TWO: Final = SigningKey("two")
URL: Final = "sasl.oauthbearer.jwks.endpoint.url"


class Scene:
    """A key process, and a network process's view of what it publishes."""

    def __init__(self, directory: Path, url: str, **options: str) -> None:
        directory.mkdir(exist_ok=True)
        self.process = Started(RoleKind.KEYS, directory, options={URL: url, **options})
        wiring = self.process.wiring
        self.runtime_dir = wiring.runtime_dir
        self.published = PublishedKeys(wiring.runtime_dir, wiring.doorbells[KEYS])
        self.process.wait_ready()

    def ids(self) -> list[str | None]:
        keys: KeySet | None = self.published.current()
        return [] if keys is None else [key.key_id for key in keys.keys]

    def wait_for(self, *key_ids: str) -> None:
        wait(lambda: self.ids() == list(key_ids), lambda: f"{self.ids()}, {self.process.errors()}")


def wait(condition: Callable[[], bool], told: Callable[[], str]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, told()
        time.sleep(0.02)


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider(key_set(ONE)) as served:
        yield served


@pytest.fixture
def scene(tmp_path: Path, provider: IdentityProvider) -> Iterator[Scene]:
    made = Scene(tmp_path / "scene", provider.url)
    yield made
    made.process.close()


def test_the_keys_are_fetched_at_the_start_and_published_for_one_user(scene: Scene) -> None:
    scene.wait_for("one")
    found = os.stat(scene.runtime_dir / "keys")
    assert found.st_mode & 0o777 == 0o600
    assert "1 keys of the identity provider are in use: 'one'" in scene.process.errors()
    counters = scene.process.row
    assert counters is not None


def test_a_question_brings_rotated_keys_soon_and_questions_are_bounded(
    scene: Scene, provider: IdentityProvider
) -> None:
    scene.wait_for("one")
    provider.document = key_set(ONE, TWO)
    scene.published.ask_for_newer()
    scene.wait_for("one", "two")
    fetches = len(provider.requests)
    provider.document = key_set(TWO)
    for _ in range(2000):
        scene.published.ask_for_newer()
    time.sleep(1.0)
    assert len(provider.requests) == fetches
    assert scene.ids() == ["one", "two"]
    scene.wait_for("two")  # it was not forgotten: ten seconds after the first
    assert len(provider.requests) == fetches + 1


def test_only_network_processes_keep_the_bell_of_the_key_process(scene: Scene) -> None:
    wiring = scene.process.wiring
    for role in wiring.running:
        if role != KEYS:
            assert _keeps_bell(wiring, role) == (role.kind is RoleKind.NETPROC), role


def _keeps_bell(wiring: Wiring, role: Role) -> bool:
    """Whether a child that plays `role` can still ask for newer keys, after it closed what is not its own."""
    child = os.fork()
    if not child:
        code = 1
        try:
            wiring.close_bells_of_strangers(role)
            published = published_keys(wiring)
            assert published is not None
            published.ask_for_newer()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def test_the_keys_are_fetched_again_each_interval(tmp_path: Path, provider: IdentityProvider) -> None:
    scene = Scene(tmp_path / "scene", provider.url, **{"sasl.oauthbearer.jwks.endpoint.refresh.ms": "1000"})
    scene.wait_for("one")
    provider.document = key_set(TWO)
    scene.wait_for("two")
    scene.process.close()


@pytest.mark.parametrize(
    "document", [b"", b"<html>", key_set(), b"[" * 500_000, key_set({"kty": "oct", "k": "x"})]
)
def test_a_bad_answer_leaves_the_last_keys_in_use(
    scene: Scene, provider: IdentityProvider, document: bytes
) -> None:
    scene.wait_for("one")
    provider.document = document
    scene.published.ask_for_newer()
    wait(lambda: "cannot get the keys" in scene.process.errors(), scene.process.errors)
    assert scene.ids() == ["one"]
    assert "the last keys stay in use" in scene.process.errors()
    provider.document = key_set(TWO)
    scene.wait_for("two")
    assert "Traceback" not in scene.process.errors()


def test_an_endpoint_that_comes_late_is_found_and_one_reason_is_one_line(tmp_path: Path) -> None:
    with IdentityProvider(b"") as unused:
        port, url = unused.port, unused.url
    scene = Scene(tmp_path / "scene", url)
    time.sleep(1.0)
    assert scene.ids() == []
    assert scene.process.errors().count("cannot get the keys") == 1
    assert "no client can log in with OAUTHBEARER" in scene.process.errors()
    with IdentityProvider(key_set(ONE), port=port):
        scene.wait_for("one")
    scene.process.close()


def test_a_stop_does_not_wait_for_an_endpoint_that_never_answers(tmp_path: Path) -> None:
    with IdentityProvider(b"") as provider:
        provider.answer = lambda handler: time.sleep(30)
        scene = Scene(tmp_path / "scene", provider.url)
        wait(lambda: bool(provider.requests), scene.process.errors)
        scene.process.answers(1)
        scene.process.stop(within_ms=1000)
        assert scene.process.exit_code(within_s=3.0) == 0
        scene.process.close()


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(ONE))
    scene = Scene(tmp_path / "scene", f"file://{path}")
    scene.wait_for("one")
    path.write_bytes(key_set(TWO)[:-5])  # half written
    wait(lambda: "cannot get the keys" in scene.process.errors(), scene.process.errors)
    assert scene.ids() == ["one"]
    path.write_bytes(key_set(TWO))
    scene.wait_for("two")
    scene.process.close()


def test_keys_that_cannot_be_used_are_named_once(tmp_path: Path, provider: IdentityProvider) -> None:
    provider.document = key_set({"kty": "oct", "k": "c2VjcmV0", "kid": "shared"}, ONE)
    scene = Scene(tmp_path / "scene", provider.url, **{"sasl.oauthbearer.jwks.endpoint.refresh.ms": "1000"})
    scene.wait_for("one")
    wait(lambda: len(provider.requests) >= 3, scene.process.errors)
    assert scene.process.errors().count("key 'shared': a symmetric key") == 1
    assert b"c2VjcmV0" not in (scene.runtime_dir / "keys").read_bytes()
    scene.process.close()


def test_what_is_published_outlives_the_process_and_a_damaged_file_changes_nothing(scene: Scene) -> None:
    scene.wait_for("one")
    scene.process.stop(within_ms=1000)
    assert scene.process.exit_code(within_s=5.0) == 0
    assert scene.ids() == ["one"]
    (scene.runtime_dir / "keys").write_bytes(b"{")
    assert scene.ids() == ["one"]
    (scene.runtime_dir / "keys").unlink()
    assert scene.ids() == ["one"]
