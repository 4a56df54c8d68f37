"""The commands over a listener with SASL_SSL: each of them logs in, and `appliance tokens` beside Kafka's own tool."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.command import Outcome, appliance
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.support.native_play import play
from tests.support.pki import Authority
from tests.support.wire import free_ports

TOPIC: Final = "orders"
PASSWORD: Final = 'a secret, "quoted"'
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TOKEN_TOOL: Final = "org.apache.kafka.tools.DelegationTokenCommand"
PRODUCER: Final = "org.apache.kafka.tools.VerifiableProducer"
SECRET: Final = "the secret of this cluster"


class Scene:
    """A broker that only lets in who logs in, beside a listener on loopback for the first user."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory / "pki")
        server = self.authority.server()
        self.port = free_ports(2)
        self.address = f"localhost:{self.port + 1}"
        self.broker = Appliance(
            directory / "data",
            port=self.port,
            settings={
                "listeners": [f"PLAINTEXT://127.0.0.1:{self.port}", f"SASL_SSL://127.0.0.1:{self.port + 1}"],
                "advertised.listeners": [f"SASL_SSL://localhost:{self.port + 1}"],
                "ssl.certificate.file": str(server.certificate),
                "ssl.key.file": str(server.key),
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "authorizer.class.name": AUTHORIZER,
                "super.users": "User:alice;User:ANONYMOUS",
                "delegation.token.secret.key": SECRET,
                "audit.log.events": ["authentications", "refusals", "changes"],
            },
        )

    def start(self) -> None:
        self.broker.start()
        for user in ("alice", "bob"):
            appliance(
                *("users", "add", user, "--mechanism", "SCRAM-SHA-512", "--password-file", "-"),
                *("--bootstrap", self.broker.address),
                given=PASSWORD.encode() + b"\n",
            ).succeeded()

    def properties(self, user: str, password: str = PASSWORD, *, by_token: bool = False) -> Path:
        """Properties of Kafka's own tools."""
        quoted = password.replace('"', '\\"')
        login = f'ScramLoginModule required username="{user}" password="{quoted}"'
        text = (
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
            f"sasl.jaas.config=org.apache.kafka.common.security.scram.{login}"
            f"{' tokenauth=true' if by_token else ''};\n".replace("\\", "\\\\")
        )
        text += f"ssl.truststore.type=PEM\nssl.truststore.location={self.authority.certificate}\n"
        path = self.directory / f"{user}.properties"
        path.write_text(text)
        return path

    def run(self, *arguments: object, user: str = "alice", **more: Any) -> Outcome:
        """A command of ours, as this user."""
        flags = ("--bootstrap", self.address, "--command-config", self.properties(user))
        return appliance(*arguments, *flags, **more)

    def audited(self, api: str) -> list[dict[str, Any]]:
        """The changes by this API in the journal."""
        told = appliance(
            *("audit-log", "show"), "--data-dir", self.broker.data_dir, "--event", "change", "--json"
        ).succeeded()
        return [entry for line in told.text.splitlines() if (entry := json.loads(line))["api"] == api]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("cli-sasl"))
    try:
        scene.start()
        scene.run("topics", "create", TOPIC).succeeded()
        scene.run("produce", TOPIC, given=b"value\n").succeeded()
        yield scene
    finally:
        scene.broker.stop()


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "describe", TOPIC),
        ("cluster", "info"),
        ("configs", "describe", "--topic", TOPIC),
        ("configs", "set", "--topic", TOPIC, "retention.ms=1h"),
        ("groups", "list"),
        ("transactions", "list"),
        ("transactions", "producers", TOPIC),
        ("acls", "allow", "User:carol", "read", "--topic", TOPIC),
        ("acls", "list"),
        ("quotas", "set", "--user", "carol", "producer_byte_rate=1000"),
        ("quotas", "list"),
        ("users", "list"),
        ("offsets", TOPIC),
        ("log-dirs", "describe"),
        ("slots", "list"),
        ("slots", "describe", "0"),
        ("partitions", "list"),
        ("partitions", "elect", TOPIC),
        ("reassign", "status"),
        ("tokens", "list"),
        ("consume", TOPIC, "--from", "beginning", "--count", "1"),
        ("perf", "produce", TOPIC, "--records", "10"),
    ],
    ids=" ".join,
)
def test_every_command_that_connects_logs_in(scene: Scene, arguments: tuple[str, ...]) -> None:
    scene.run(*arguments).succeeded()


@pytest.mark.parametrize(
    "arguments", [("topics", "list"), ("slots", "list"), ("tokens", "list")], ids=" ".join
)
def test_a_login_that_the_broker_refuses_is_told(scene: Scene, arguments: tuple[str, ...]) -> None:
    wrong = scene.properties("nobody", "wrong")
    told = appliance(*arguments, "--bootstrap", scene.address, "--command-config", wrong)
    assert told.code == 1
    assert "refused the login" in told.errors
    assert "wrong" not in told.errors.replace(str(wrong), "")


def test_a_token_is_made_listed_renewed_and_ended(scene: Scene) -> None:
    made = json.loads(
        scene.run(
            *("tokens", "create", "--owner", "User:bob", "--renewer", "User:alice", "--max-lifetime", "2h"),
            "--json",
        )
        .succeeded()
        .text
    )
    assert (made["owner"], made["requester"]) == ("User:bob", "User:alice")
    (row,) = json.loads(scene.run("tokens", "list", "--owner", "User:bob", "--json").succeeded().text)
    assert row["id"] == made["id"]
    assert row["renewers"] == ["User:alice"]
    assert "password" not in row
    given = f"{made['password']}\n".encode()
    told = scene.run("tokens", "renew", "--password-file", "-", "--period", "30m", given=given).succeeded()
    assert re.fullmatch(r"the token expires at \d{4}-\S+Z\n", told.text)
    later = scene.run("tokens", "expire", "--password-file", "-", "--in", "10m", given=given).succeeded()
    assert later.text < told.text
    by_token = scene.properties(made["id"], made["password"], by_token=True)
    # bob may do nothing, and shows who logged in.
    seen = appliance("acls", "list", "--bootstrap", scene.address, "--command-config", by_token)
    assert "CLUSTER_AUTHORIZATION_FAILED" in seen.errors
    refused = appliance("tokens", "list", "--bootstrap", scene.address, "--command-config", by_token)
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in refused.errors
    through_librdkafka = appliance(
        "topics", "list", "--bootstrap", scene.address, "--command-config", by_token
    )
    assert (through_librdkafka.code, "tokenauth" in through_librdkafka.errors) == (2, True)
    assert scene.run("tokens", "expire", "--password-file", "-", given=given).succeeded().text == (
        "the token is ended\n"
    )
    assert not json.loads(scene.run("tokens", "list", "--owner", "User:bob", "--json").succeeded().text)
    gone = scene.run("tokens", "expire", "--password-file", "-", given=given)
    assert (gone.code, "DELEGATION_TOKEN_NOT_FOUND" in gone.errors) == (1, True)
    assert scene.run("tokens", "expire", "--password-file", "-", given=b"%%\n").code == 1
    (entry,) = [
        each for each in scene.audited("CreateDelegationToken") if each["resources"][0]["name"] == made["id"]
    ]
    fingerprint = entry["resources"][0]["detail"]["fingerprint"]
    ended = [each["resources"][0]["name"] for each in scene.audited("ExpireDelegationToken")]
    assert fingerprint in ended
    assert made["password"] not in scene.broker.output()


def test_kafkas_own_tool_makes_a_token_that_java_and_the_native_client_log_in_with(scene: Scene) -> None:
    common = ("--bootstrap-server", scene.address, "--command-config", str(scene.properties("alice")))
    made = tool(
        TOKEN_TOOL,
        *(*common, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob"),
    )
    found = re.search(r"^(\S{22})\s+(\S+)\s+User:alice\s+User:alice\s+\[User:bob\]", made, re.MULTILINE)
    assert found is not None, made
    token_id, password = found.groups()
    assert len(base64.b64decode(password)) == 64
    described = tool(TOKEN_TOOL, *common, "--describe", "--owner-principal", "User:alice")
    assert token_id in described
    by_token = scene.properties(token_id, password, by_token=True)
    told = tool(
        PRODUCER,
        *("--bootstrap-server", scene.address, "--command-config", str(by_token)),
        *("--topic", "by-token", "--max-messages", "100", "--acks", "-1"),
    )
    assert '"acked":100' in told
    options = {
        "bootstrap_servers": scene.address,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(scene.authority.certificate),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": token_id,
        "sasl_password": password,
        "sasl_token_auth": True,
    }
    values = [b"%d" % number for number in range(10)]
    assert play(options, "by-token-too", values) == values
    assert "Calling renew" in tool(
        TOKEN_TOOL, *common, "--renew", "--renew-time-period", "60000", "--hmac", password
    )
    tool(TOKEN_TOOL, *common, "--expire", "--expiry-time-period", "-1", "--hmac", password)
    assert token_id not in scene.run("tokens", "list").succeeded().text
