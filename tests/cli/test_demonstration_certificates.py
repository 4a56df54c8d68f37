"""The certificates of `serve --secure`: made once, private, never overwritten, and told what is wrong with them."""

from __future__ import annotations

import os
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from appliance.cli.demonstration_certificates import CERTIFICATE_DAYS, prepare
from appliance.cli.secure import expiry_text, options_of
from appliance.config import load_settings
from appliance.errors import ConfigurationError, OperatorFault

NOW = datetime.now(UTC)
FILES = {
    "ca.pem",
    "ca.key",
    "server.pem",
    "server.key",
    "admin.pem",
    "admin.key",
    "admin-keystore.pem",
}


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_all_files_are_made_for_this_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = prepare(tmp_path, ())
    finally:
        os.umask(before)
    assert made.made == ("ca", "server", "admin")
    assert stat.S_IMODE(made.directory.stat().st_mode) == 0o700
    assert {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in made.directory.iterdir()
    } == dict.fromkeys(FILES, 0o600)
    assert [path.name for path in tmp_path.iterdir()] == ["secure"]


def test_openssl_accepts_the_chains_and_the_purposes(tmp_path: Path) -> None:
    made = prepare(tmp_path, ("logs.example", "192.0.2.7"))
    for purpose, path in (("sslserver", made.server[0]), ("sslclient", made.admin[0])):
        told = subprocess.run(
            ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", made.ca, path],
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stderr
    wrong = ["openssl", "verify", "-purpose", "sslserver", "-CAfile", str(made.ca), str(made.admin[0])]
    assert subprocess.run(wrong, capture_output=True, check=False).returncode != 0
    told = subprocess.run(
        ["openssl", "x509", "-in", made.server[0], "-noout", "-ext", "subjectAltName"],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in ("DNS:localhost", "IP Address:127.0.0.1", "DNS:logs.example", "IP Address:192.0.2.7"):
        assert name in told.stdout
    ssl.create_default_context(cafile=made.ca).load_cert_chain(made.admin_keystore)


def test_a_second_start_overwrites_nothing(tmp_path: Path) -> None:
    first = prepare(tmp_path, ())
    before = contents(first.directory)
    second = prepare(tmp_path, (), now=NOW + timedelta(days=30))
    assert (contents(second.directory), second.made) == (before, ())
    assert second.valid_until == first.valid_until


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "server.pem", "server.key", "admin.pem", "admin.key"])
def test_a_half_of_a_pair_is_an_error_that_names_both_files(tmp_path: Path, name: str) -> None:
    made = prepare(tmp_path, ())
    (made.directory / name).unlink()
    before = contents(made.directory)
    with pytest.raises(OperatorFault) as told:
        prepare(tmp_path, ())
    stem, suffix = name.split(".")
    other = f"{stem}.{'key' if suffix == 'pem' else 'pem'}"
    assert f"{made.directory / name} is missing, and {made.directory / other} is there" in str(told.value)
    assert contents(made.directory) == before


def test_an_authority_that_is_gone_is_not_replaced_under_what_it_signed(tmp_path: Path) -> None:
    made = prepare(tmp_path, ())
    for name in ("ca.pem", "ca.key"):
        (made.directory / name).unlink()
    with pytest.raises(OperatorFault, match=r"ca.pem and ca.key are missing"):
        prepare(tmp_path, ())


def test_a_pair_that_was_removed_is_made_again_and_the_others_stay(tmp_path: Path) -> None:
    made = prepare(tmp_path, ())
    before = contents(made.directory)
    for name in ("admin.pem", "admin.key"):
        (made.directory / name).unlink()
    again = prepare(tmp_path, ())
    after = contents(made.directory)
    assert again.made == ("admin",)
    assert {name for name in FILES if before[name] != after[name]} == {
        "admin.pem",
        "admin.key",
        "admin-keystore.pem",
    }
    assert after["admin-keystore.pem"] == after["admin.key"] + after["admin.pem"]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("server.pem", b"no certificate", "is no certificate in PEM format"),
        ("admin.key", b"", "is no unencrypted private key in PEM format"),
    ],
)
def test_a_file_that_is_none_is_told(tmp_path: Path, name: str, text: bytes, told: str) -> None:
    made = prepare(tmp_path, ())
    (made.directory / name).write_bytes(text)
    with pytest.raises(OperatorFault, match=told):
        prepare(tmp_path, ())


def test_files_that_do_not_belong_together_are_told(tmp_path: Path) -> None:
    for place in ("one", "other"):
        (tmp_path / place).mkdir()
    one, other = prepare(tmp_path / "one", ()), prepare(tmp_path / "other", ())
    one.server[1].write_bytes(other.server[1].read_bytes())
    with pytest.raises(OperatorFault, match=r"server.key does not belong to .*server.pem"):
        prepare(tmp_path / "one", ())
    one.server[0].write_bytes(other.server[0].read_bytes())
    with pytest.raises(OperatorFault, match=r"server.pem is not signed by"):
        prepare(tmp_path / "one", ())


def test_expiry_is_told_before_and_refused_after(tmp_path: Path) -> None:
    made = prepare(tmp_path, ())
    assert made.days_left(NOW) >= CERTIFICATE_DAYS - 1
    assert expiry_text(made, NOW) == ""
    soon = made.valid_until - timedelta(days=10)
    assert "expires in 10 days" in expiry_text(made, soon)
    with pytest.raises(OperatorFault, match=r"server.pem has expired on .* remove server.pem and server.key"):
        prepare(tmp_path, (), now=made.valid_until + timedelta(days=1))


def test_a_name_that_the_certificate_does_not_have_is_told(tmp_path: Path) -> None:
    prepare(tmp_path, ())
    with pytest.raises(OperatorFault, match=r"server.pem is not for the name logs.example"):
        prepare(tmp_path, ("logs.example",))


def test_a_start_that_is_killed_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.fork()
    if pid == 0:
        count = 0

        def die_in_the_middle(*_: object) -> None:
            nonlocal count
            count += 1
            if count == 4:
                os._exit(9)

        monkeypatch.setattr(os, "fsync", die_in_the_middle)
        prepare(tmp_path, ())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert not (tmp_path / "secure").exists()
    assert prepare(tmp_path, ()).made == ("ca", "server", "admin")


def test_others_lose_what_they_could_read(tmp_path: Path) -> None:
    made = prepare(tmp_path, ())
    made.directory.chmod(0o755)
    made.admin[1].chmod(0o644)
    prepare(tmp_path, ())
    assert stat.S_IMODE(made.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(made.admin[1].stat().st_mode) == 0o600


def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "secure").symlink_to("elsewhere")
    with pytest.raises(OperatorFault, match="is not a directory of this user"):
        prepare(tmp_path, ())
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("name", ["ssl.client.auth", "super.users", "listeners"])
def test_options_that_it_chooses_itself_exclude_it(tmp_path: Path, name: str) -> None:
    value = {
        "ssl.client.auth": "none",
        "super.users": "User:ann",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
    }[name]
    asked = load_settings(None, {"data.dir": str(tmp_path), name: value})
    with pytest.raises(ConfigurationError, match=f"--secure sets {name} itself"):
        options_of(asked)
