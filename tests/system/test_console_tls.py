"""The console as a client of a listener with TLS: it trusts this listener's certificate, and no other one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Appliance
from tests.support.pki import Authority
from tests.support.wire import free_ports
from tests.system.console_scene import ask

FORM = {"user": "plain", "password": "plain-secret", "mechanism": "PLAIN"}


class Scene:
    """An appliance whose console logs in with PLAIN over TLS."""

    def __init__(self, home: Path) -> None:
        port = free_ports(3)
        self.console = port + 2
        self.authority = Authority(home / "pki")
        server = self.authority.server()
        self.certificate, self.key = home / "certificate.pem", home / "key.pem"
        shutil.copy(server.certificate, self.certificate)
        shutil.copy(server.key, self.key)
        users = home / "users.toml"
        users.write_text('"plain" = "plain-secret"\n')
        users.chmod(0o600)
        self.broker = Appliance(
            home / "data",
            port=port,
            settings={
                "listeners": [f"PLAINTEXT://127.0.0.1:{port}", f"SASL_SSL://127.0.0.1:{port + 1}"],
                "sasl.enabled.mechanisms": ["PLAIN"],
                "sasl.plain.users.file": str(users),
                "ssl.certificate.file": str(self.certificate),
                "ssl.key.file": str(self.key),
                "console.listener": f"127.0.0.1:{self.console}",
            },
        )


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    try:
        scene.broker.start()
        yield scene
        scene.broker.stop()
    finally:
        scene.broker.kill()


def test_a_login_over_tls_survives_a_new_certificate_and_trusts_no_other_one(scene: Scene) -> None:
    status, headers, body = ask(scene.console, "POST", "/login", form=FORM)
    assert status == 303, body
    cookie = {"Cookie": headers["set-cookie"].partition(";")[0]}
    status, _, body = ask(scene.console, "GET", "/topics", headers=cookie)
    assert status == 200, body
    assert "plain" in body
    assert ask(scene.console, "POST", "/login", form={**FORM, "password": "wrong"})[0] == 403
    stranger = Authority(scene.certificate.parent / "stranger").server()
    # The file says one certificate, and the listener, which has not looked yet, or refuses the pair, has another one.
    shutil.copy(stranger.certificate, scene.certificate)
    status, _, body = ask(scene.console, "POST", "/login", form=FORM)
    assert status == 502, body
    assert "No login now" in body
