"""PLAIN, and the file with its users."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.clock import NS_PER_MS, ManualClock
from appliance.errors import OperatorFault
from appliance.sasl.mechanism import AuthenticationFailed
from appliance.sasl.password_file import LOOK_INTERVAL_NS, PasswordFile, read_passwords
from appliance.sasl.plain import PlainExchange

PASSWORDS = {"alice": "alice-secret", "bob": "pässword"}


def exchange() -> PlainExchange:
    return PlainExchange(lambda: PASSWORDS)


@pytest.mark.parametrize(
    ("token", "principal"),
    [
        ("\0alice\0alice-secret", "User:alice"),
        ("alice\0alice\0alice-secret", "User:alice"),
        ("\0bob\0pässword", "User:bob"),
    ],
)
def test_the_right_password_authenticates(token: str, principal: str) -> None:
    one = exchange()
    assert one.evaluate(token.encode()) == b""
    assert (one.is_complete, one.principal, one.expires_at_ms) == (True, principal, None)


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0\xff\0\xff", "Authentication failed: Invalid username or password"),
        (b"\0\0alice-secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (
            b"bob\0alice\0alice-secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0alice-secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0" * 1000, "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
    ],
)
def test_everything_else_fails(token: bytes, why: str) -> None:
    one = exchange()
    with pytest.raises(AuthenticationFailed) as failed:
        one.evaluate(token)
    assert failed.value.message == why
    assert not one.is_complete


def written(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_the_file_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "users", '"alice" = "alice-secret"\n"a b=c" = "x y"\n')
    assert read_passwords(path) == {"alice": "alice-secret", "a b=c": "x y"}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "users", '"alice" = "alice-secret"\n', mode)
    with pytest.raises(OperatorFault, match="run chmod 600"):
        read_passwords(path)


@pytest.mark.parametrize(
    "text",
    [
        "alice-secret",
        '"alice" = "alice-secret',
        '"alice" = ""',
        '"alice" = 1',
        '[alice]\n"x" = "alice-secret"',
        '"" = "x"',
    ],
)
def test_a_file_that_is_none_is_refused_and_no_password_is_shown(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "users", text)
    with pytest.raises(OperatorFault) as refused:
        read_passwords(path)
    assert path in str(refused.value)
    assert "alice-secret" not in str(refused.value)


def test_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorFault, match="No such file"):
        read_passwords(str(tmp_path / "users"))


def test_a_changed_file_counts_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    said: list[str] = []
    path = tmp_path / "users"
    file = PasswordFile(written(path, '"alice" = "old"'), clock, said.append)
    written(path, '"alice" = "newer"')
    assert file.passwords() == {"alice": "old"}
    clock.advance(LOOK_INTERVAL_NS // NS_PER_MS)
    assert file.passwords() == {"alice": "newer"}
    written(path, "newest")
    clock.advance(LOOK_INTERVAL_NS // NS_PER_MS)
    assert file.passwords() == {"alice": "newer"}
    assert len(said) == 2
    assert "newer" not in "".join(said)
