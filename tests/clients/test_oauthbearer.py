"""Real clients with tokens of an identity provider, over SASL_SSL, set up as docs/access.md says.

ACLs show who the broker takes each client for: alice may do everything, and nobody else may do anything.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import KafkaError, Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError as PythonKafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.clients import franz_go_logins
from tests.clients.access_page import PAGE, example, play, settings_of
from tests.support import native_play
from tests.support.apache_kafka import java
from tests.support.broker import Appliance
from tests.support.identity_provider import ISSUER, IdentityProvider, SigningKey, good_claims, key_set
from tests.support.judge import QUICK_GROUPS
from tests.support.pki import Authority
from tests.support.wire import free_ports

DRIVER: Final = Path(__file__).parent / "kafkajs" / "tokens.js"
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
COUNT: Final = 200
VALUES: Final = [b"%d" % number for number in range(COUNT)]
ONE: Final = SigningKey("one", use="sig", alg="RS256")


class Scene:
    """The options of the page, with ports and paths of the test; and an identity provider with TLS."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory / "pki")
        server = self.authority.server()
        self.port = free_ports(2)
        self.address = f"localhost:{self.port + 1}"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.certificate, server.key)
        self.provider = IdentityProvider(key_set(ONE), context=context)
        self.provider.issue = self.token
        settings = settings_of(example("oauthbearer options"))
        settings["listeners"] = [f"INTERNAL://127.0.0.1:{self.port}", f"TOKENS://0.0.0.0:{self.port + 1}"]
        settings["advertised.listeners"] = [f"TOKENS://localhost:{self.port + 1}"]
        settings["ssl.certificate.file"] = str(server.certificate)
        settings["ssl.key.file"] = str(server.key)
        settings["sasl.oauthbearer.jwks.endpoint.url"] = self.provider.url
        settings["sasl.oauthbearer.expected.issuer"] = ISSUER
        settings["sasl.oauthbearer.jwks.endpoint.truststore.location"] = str(self.authority.certificate)
        settings["authorizer.class.name"] = AUTHORIZER
        settings["super.users"] = "User:alice;User:ANONYMOUS"
        assert settings["sasl.oauthbearer.expected.audience"] == ["logs"]
        self.broker = Appliance(directory / "data", port=self.port, settings={**settings, **QUICK_GROUPS})

    def token(self, **changed: Any) -> str:
        return ONE.token(good_claims(**{"aud": "logs", **changed}))

    @property
    def authorities(self) -> str:
        return str(self.authority.certificate)

    def librdkafka(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "broker.address.family": "v4",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.authorities,
            "sasl.mechanisms": "OAUTHBEARER",
            **more,
        }

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authorities)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("oauthbearer"))
    scene.broker.start()
    yield scene
    scene.broker.stop()
    scene.provider.close()


def test_confluent_kafka_with_a_callback(scene: Scene) -> None:
    asked: list[str] = []

    def give(config: str) -> tuple[str, float]:
        asked.append(config)
        claims = good_claims(aud="logs")
        return ONE.token(claims), float(claims["exp"])

    play(scene.librdkafka(oauth_cb=give), "confluent", VALUES)
    assert asked


def native_options(scene: Scene, provider: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": scene.address,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": scene.authorities,
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
    }


def test_the_native_client_with_a_callback(scene: Scene) -> None:
    assert native_play.play(native_options(scene, scene.token), "native", VALUES) == VALUES


def test_the_native_client_with_a_coroutine_function(scene: Scene) -> None:
    async def give() -> str:
        await asyncio.sleep(0.01)
        return scene.token()

    assert native_play.play_async(native_options(scene, give), "native-aio", VALUES) == VALUES


def test_the_native_client_authenticates_again_with_another_token_before_the_first_ends(scene: Scene) -> None:
    given: list[str] = []

    def give() -> str:
        now_s = int(time.time())
        given.append(scene.token(iat=now_s, exp=now_s + 3))
        return given[-1]

    with native_play.counted() as counts:
        found = native_play.play(native_options(scene, give), "native-again", VALUES, pause_s=3.5)
    assert found == VALUES
    assert counts.authenticated > counts.opened
    assert counts.lost == 0


def test_confluent_kafka_that_asks_the_token_endpoint_itself(scene: Scene) -> None:
    page = re.search(r"```python\nProducer\(\s*(\{.*?\})\s*\)", PAGE.read_text(), re.DOTALL)
    assert page is not None
    told: dict[str, Any] = json.loads(re.sub(r",\s*\}", "}", page[1]))
    assert told["sasl.oauthbearer.method"] == "oidc"
    told |= scene.librdkafka()
    told["sasl.oauthbearer.token.endpoint.url"] = scene.provider.token_url
    told["https.ca.location"] = scene.authorities
    play(told, "oidc", VALUES)
    assert "/token" in scene.provider.requests


@pytest.mark.parametrize(
    "changed", [{"exp": 1_600_000_000, "iat": 1_500_000_000}, {"aud": "other"}, {"iss": "https://x.example"}]
)
def test_confluent_kafka_with_a_bad_token_learns_that_it_failed(
    scene: Scene, changed: dict[str, Any]
) -> None:
    errors: list[KafkaError] = []

    def give(config: str) -> tuple[str, float]:
        return scene.token(**changed), float(good_claims()["exp"])

    producer = Producer(scene.librdkafka(oauth_cb=give, error_cb=errors.append))
    producer.produce("confluent", b"never")
    producer.poll(3)
    producer.purge()
    producer.flush(5)
    told = [str(error) for error in errors if error.code() == KafkaError._AUTHENTICATION]
    assert told
    assert all("invalid_token" in each for each in told)


class PythonTokens(AbstractTokenProvider):  # type: ignore[misc]
    """What kafka-python asks for a token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token

    def extensions(self) -> dict[str, str]:
        return {"traceId": "123"}


def python_options(scene: Scene, token: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": scene.address,
        "security_protocol": "SASL_SSL",
        "ssl_context": scene.context(),
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": PythonTokens(token),
    }


def test_kafka_python(scene: Scene) -> None:
    options = python_options(scene, scene.token())
    producer = KafkaProducer(**options, acks="all")
    sent = [producer.send("python", value) for value in VALUES]
    assert [each.get(60).offset for each in sent] == list(range(COUNT))
    producer.close()
    consumer = KafkaConsumer(**options, auto_offset_reset="earliest", consumer_timeout_ms=30_000)
    consumer.assign([TopicPartition("python", 0)])
    got = []
    for record in consumer:
        got.append(record.value)
        if len(got) == COUNT:
            break
    consumer.close()
    assert got == VALUES


def test_kafka_python_with_a_bad_token(scene: Scene) -> None:
    with pytest.raises(PythonKafkaError):
        KafkaProducer(**python_options(scene, scene.token(aud="other")), bootstrap_timeout_ms=3000)


def test_franz_go(scene: Scene) -> None:
    found = franz_go_logins.play_logged_in(
        scene.address,
        "franz-go",
        VALUES,
        mechanism="OAUTHBEARER",
        password=scene.token(),
        authority=scene.authorities,
    )
    assert found == VALUES


class AioTokens(AioTokenProvider):  # type: ignore[misc]
    """What aiokafka asks for a token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def test_aiokafka(scene: Scene) -> None:
    def options(token: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": scene.address,
            "security_protocol": "SASL_SSL",
            "ssl_context": scene.context(),
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": AioTokens(token),
        }

    async def played() -> list[bytes]:
        producer = AIOKafkaProducer(**options(scene.token()), acks="all")
        await producer.start()
        for value in VALUES:
            await producer.send("aiokafka", value)
        await producer.stop()
        consumer = AIOKafkaConsumer("aiokafka", **options(scene.token()), auto_offset_reset="earliest")
        await consumer.start()
        got = [(await asyncio.wait_for(consumer.getone(), 60)).value for _ in range(COUNT)]
        await consumer.stop()
        # It does not understand the error, and sends its first request: the connection is closed.
        stranger = AIOKafkaProducer(**options(SigningKey("one").token(good_claims(aud="logs"))))
        with pytest.raises(KafkaConnectionError):
            await stranger.start()
        await stranger.stop()
        return got

    assert asyncio.run(played()) == VALUES


def test_kafkajs(scene: Scene) -> None:
    def run(token: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["node", str(DRIVER), scene.address, scene.authorities, "kafkajs", token, str(COUNT)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    done = run(scene.token())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [str(number) for number in range(COUNT)]
    refused = run(scene.token(aud="other"))
    assert refused.returncode == 1
    # As aiokafka, it sends its first request after the error.
    assert "Closed connection" in refused.stderr


def run_java(scene: Scene, properties: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    allowed = f"{scene.provider.token_url},file://{scene.directory}/token.jwt"
    words = java("-Xmx256m", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={allowed}")
    return subprocess.run(
        [*words, name, "--bootstrap-server", scene.address, "--command-config", str(properties), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def java_properties(scene: Scene, url: str) -> Path:
    """Those of the page."""
    page = re.search(r"```properties\n([^`]*sasl.mechanism=OAUTHBEARER\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert page is not None
    told = page[1].replace("location=ca.pem", f"location={scene.authorities}")
    told = re.sub(r"(token.endpoint.url=).*", rf"\g<1>{url}", told)
    # The login asks an identity provider of the test's own authority.
    told = told.replace(
        "OAuthBearerLoginModule required;",
        'OAuthBearerLoginModule required ssl.truststore.type="PEM" '
        f'ssl.truststore.location="{scene.authorities}";',
    )
    path = scene.directory / "client.properties"
    path.write_text(told)
    return path


@pytest.mark.parametrize("way", ["endpoint", "file"])
def test_java(scene: Scene, way: str) -> None:
    url = scene.provider.token_url
    if way == "file":
        (scene.directory / "token.jwt").write_text(scene.token(scope="logs"))
        url = f"file://{scene.directory}/token.jwt"
    scene.provider.issue = lambda: scene.token(scope="logs")
    properties = java_properties(scene, url)
    topic = f"java-{way}"
    told = run_java(
        scene,
        properties,
        "org.apache.kafka.tools.VerifiableProducer",
        *("--topic", topic, "--max-messages", "1000", "--acks", "-1"),
    )
    assert '"acked":1000' in told.stdout, told.stdout + told.stderr
    read = run_java(
        scene,
        properties,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", topic, "--from-beginning", "--max-messages", "1000", "--timeout-ms", "60000"),
    )
    assert [int(line) for line in read.stdout.split()] == list(range(1000)), read.stderr


def test_another_principal_may_do_nothing(scene: Scene) -> None:
    """ACLs count for the subject of the token."""

    def give(config: str) -> tuple[str, float]:
        return scene.token(sub="bob"), float(good_claims()["exp"])

    failures: list[Any] = []
    producer = Producer(scene.librdkafka(oauth_cb=give))
    producer.produce("confluent", b"never", on_delivery=lambda error, _: failures.append(error))
    producer.flush(30)
    assert [error.code() for error in failures] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
