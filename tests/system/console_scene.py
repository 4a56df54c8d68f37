"""An appliance with a console, two users and a Chromium: what the tests of the console have in common."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Browser

from tests.support.broker import Appliance
from tests.support.browser import Window, chromium, window
from tests.support.judge import QUICK_GROUPS
from tests.support.wire import free_ports

AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ADMIN: Final = "admin"
READER: Final = "reader"
PATIENCE_S: Final = 60
HOSTILE: Final = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
"""Markup that must be text, wherever it is shown."""


class Console:
    """A broker whose console a test opens.

    Args:
        is_secured: with SASL and ACLs; `admin` may do everything, `reader` may read the topic `orders` only.
    """

    def __init__(
        self, home: Path, browser: Browser, *, slots: int = 1, is_secured: bool = True, **more: object
    ) -> None:
        self.browser = browser
        port = free_ports(2 * slots + 1)
        self.port = port + 2 * slots
        self.url = f"http://127.0.0.1:{self.port}"
        self.sasl_port = port + slots
        secured: dict[str, object] = {
            "listeners": [f"PLAINTEXT://127.0.0.1:{port}", f"SASL_PLAINTEXT://127.0.0.1:{self.sasl_port}"],
            "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
            "authorizer.class.name": AUTHORIZER,
            "super.users": f"User:{ADMIN};User:ANONYMOUS",
        }
        self.broker = Appliance(
            home / "data",
            slots=slots,
            port=port,
            settings={
                **QUICK_GROUPS,
                "console.listener": f"127.0.0.1:{self.port}",
                **(secured if is_secured else {"port": port}),
                **more,
            },
        )
        self.is_secured = is_secured

    def begin(self) -> None:
        """Start, and add the users."""
        self.broker.start()
        if not self.is_secured:
            return
        admin = self.admin
        for user in (ADMIN, READER):
            info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
            change = UserScramCredentialUpsertion(user, info, f"{user}-secret".encode())
            admin.alter_user_scram_credentials([change])[user].result(PATIENCE_S)
        rules = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.LITERAL,
                f"User:{READER}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for kind, name, operation in (
                (ResourceType.TOPIC, "orders", AclOperation.READ),
                (ResourceType.GROUP, "readers", AclOperation.READ),
            )
        ]
        for future in admin.create_acls(rules).values():
            future.result(PATIENCE_S)

    @cached_property
    def admin(self) -> AdminClient:
        """A client that may do everything."""
        return AdminClient({"bootstrap.servers": self.broker.address})

    def topics(self) -> set[str]:
        """The names of all topics."""
        return set(self.admin.list_topics(timeout=PATIENCE_S).topics)

    def create(
        self, topic: str, partitions: int = 1, replicas: int = 1, *, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic."""
        new = NewTopic(topic, partitions, replicas, config=dict(configs or {}))
        self.admin.create_topics([new], request_timeout=300)[topic].result(PATIENCE_S)

    def produce(self, topic: str, records: list[Mapping[str, Any]]) -> None:
        """Produce records, given as arguments of confluent-kafka's `produce`."""
        producer = Producer({"bootstrap.servers": self.broker.address})
        failures: list[object] = []
        for each in records:
            producer.produce(topic, on_delivery=lambda error, _: failures.append(error), **each)
        assert producer.flush(PATIENCE_S) == 0
        assert failures == [None] * len(records)

    @contextmanager
    def window(self, user: str | None = ADMIN, **more: Any) -> Iterator[Window]:
        """A window that `user` has logged in to; nobody for None."""
        with window(self.browser, base_url=self.url, **more) as opened:
            if user is not None:
                log_in(opened, user)
            yield opened
            assert opened.faults == []

    def ask(
        self,
        method: str,
        path: str,
        *,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, str], str]:
        """One request without a browser: status, headers, body."""
        return ask(self.port, method, path, form=form, headers=headers)

    def session(self, user: str = ADMIN) -> dict[str, str]:
        """Log in without a browser, and return the header with the cookie."""
        form = {"user": user, "password": f"{user}-secret", "mechanism": "SCRAM-SHA-256"}
        status, headers, body = self.ask("POST", "/login", form=form)
        assert status == 303, body
        return {"Cookie": headers["set-cookie"].partition(";")[0]}


def ask(
    port: int,
    method: str,
    path: str,
    *,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, str], str]:
    """One request to the console at a port, without a browser: status, headers, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    sent = dict(headers or {})
    body = None
    if form is not None:
        body = urlencode(form)
        sent["Content-Type"] = "application/x-www-form-urlencoded"
    try:
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, answer.read().decode()
    finally:
        connection.close()


def log_in(opened: Window, user: str) -> None:
    """Log in by the form."""
    page = opened.page
    page.goto("/login")
    if page.get_by_label("User").count():
        page.get_by_label("User").fill(user)
        page.get_by_label("Password").fill(f"{user}-secret")
        page.get_by_role("button", name="Log in").click()
    else:
        page.get_by_role("button", name="Open the console").click()
    page.wait_for_url("**/")


@contextmanager
def opened(home: Path, **more: Any) -> Iterator[Console]:
    """A console that runs, and a clean stop at the end."""
    with chromium() as browser:
        console = Console(home, browser, **more)
        try:
            console.begin()
            yield console
            console.broker.stop()
        finally:
            console.broker.kill()
