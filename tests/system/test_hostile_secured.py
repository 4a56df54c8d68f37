"""Mutated bytes on listeners with TLS and SASL, before and after the authentication: the broker must not mind.

Before it, a stranger needs nothing: his bytes meet OpenSSL, the cutting of frames and the mechanisms. After it, a user
sends what `test_hostile_fuzz` sends in plain text, through an encrypted connection.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from appliance.protocol.apis.api_versions import ApiVersionsRequest
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.messages import encode_request
from appliance.sasl.scram_credential import salted_password
from tests.support.broker import Appliance
from tests.support.mutation import mutated
from tests.support.pki import Authority
from tests.support.sasl_wire import (
    ScramTokens,
    asked,
    authenticate_frame,
    handshake_frame,
    log_in,
)
from tests.support.wire import WireSocket, answers_api_versions, free_ports
from tests.system.raw import create_topic
from tests.system.steady import undisturbed
from tests.system.test_hostile_fuzz import FRAMES, TOPIC, mutated_frames

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(QUICK, max_examples=5_000)
MECHANISM = "SCRAM-SHA-256"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "", "x" * 300)


class TlsSocket(WireSocket):
    """A connection with TLS."""

    def __init__(self, port: int, authority: Path, *, timeout_s: float = 60) -> None:
        super().__init__(port, timeout_s=timeout_s)
        context = ssl.create_default_context(cafile=str(authority))
        self._socket = context.wrap_socket(self._socket, server_hostname="localhost")

    def shutdown_writing(self) -> None:
        """Send a FIN without the end that TLS has; answers can still be read."""
        with socket.socket(fileno=os.dup(self._socket.fileno())) as same:
            same.shutdown(socket.SHUT_WR)


class Scene:
    """A broker with a listener for each protocol."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "pki")
        server = self.authority.server()
        users = directory / "users.toml"
        users.write_text('"alice" = "alice-secret"\n')
        users.chmod(0o600)
        self.port = free_ports(4)
        self.ssl, self.sasl, self.sasl_ssl = self.port + 1, self.port + 2, self.port + 3
        self.broker = Appliance(
            directory / "data",
            port=self.port,
            settings={
                "listeners": [
                    f"PLAINTEXT://127.0.0.1:{self.port}",
                    f"SSL://127.0.0.1:{self.ssl}",
                    f"SASL_PLAINTEXT://127.0.0.1:{self.sasl}",
                    f"SASL_SSL://127.0.0.1:{self.sasl_ssl}",
                ],
                "ssl.certificate.file": str(server.certificate),
                "ssl.key.file": str(server.key),
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                "sasl.plain.users.file": str(users),
                "connection.failed.authentication.delay.ms": 0,
                "connections.max.reauth.ms": 600_000,
                "delegation.token.secret.key": "a secret",
                "socket.request.max.bytes": 1 << 20,
                "max.partitions": 2000,
                "max.request.partition.size.limit": 20,
                "audit.log.events": ["authentications", "refusals", "changes"],
            },
        )

    def start(self) -> None:
        self.broker.start()
        assert create_topic(self.port, TOPIC) == 0
        salt = b"a salt of some length"
        made = ScramCredentialUpsertion(
            "alice", 1, 4096, salt, salted_password(MECHANISM, "alice-secret", salt, 4096)
        )
        with WireSocket(self.port) as connection:
            body = AlterUserScramCredentialsRequest((), (made,))
            asked(connection, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, body)

    def connect(self, port: int) -> WireSocket:
        """A connection as the port's listener wants it."""
        if port in {self.ssl, self.sasl_ssl}:
            return TlsSocket(port, self.authority.certificate)
        return WireSocket(port, timeout_s=60)

    def survives(self, connection: WireSocket, *pieces: bytes) -> None:
        """Send the pieces to the end of the connection, whatever that is; then ask on another one."""
        with suppress(OSError), connection:
            for piece in pieces:
                connection.send(piece)
            with suppress(OSError):
                connection.shutdown_writing()
            while not connection.ends_without_an_answer():
                pass
        assert answers_api_versions(self.port, 30)

    def lets_alice_in(self) -> None:
        """Whether clients with a password still get in."""
        with self.connect(self.sasl_ssl) as connection:
            assert not log_in(connection, MECHANISM, "alice", "alice-secret").error_code


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """At its end no process was restarted, and none wrote a traceback."""
    scene = Scene(tmp_path_factory.mktemp("secured"))
    scene.start()
    try:
        with undisturbed(scene.broker):
            yield scene
            scene.lets_alice_in()
    finally:
        scene.broker.stop()


TOKENS = st.sampled_from(
    [
        b"\0alice\0alice-secret",
        b"\0alice\0wrong",
        b"n,,n=alice,r=abcdefgh",
        b"n,,n=alice,r=abcdefgh,tokenauth=true",
        b"n,a=alice,n=alice,r=abcdefgh,x=1",
        b"y,,n=a=2Cb=3D,r=abcdefgh",
        ScramTokens(MECHANISM, "alice", "alice-secret").first,
        b"c=biws,r=abcdefgh,p=AAAA",
        b"n,,\x01auth=Bearer a.b.c\x01\x01",
        b"",
        b"\xff\xfe",
    ]
)


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Frames of a client that authenticates, some of them mutated, in any order."""
    ordered = [
        encode_request(
            ApiKey.API_VERSIONS,
            draw(st.integers(0, 4)),
            ApiVersionsRequest(client_software_name="fuzz", client_software_version="1"),
            1,
            client_id="fuzz",
        ),
        handshake_frame(draw(st.sampled_from(MECHANISMS)), draw(st.integers(0, 1))),
        *(
            authenticate_frame(draw(mutated(TOKENS) | TOKENS), draw(st.integers(0, 2)))
            for _ in range(draw(st.integers(1, 3)))
        ),
        encode_request(ApiKey.METADATA, 1, MetadataRequest(()), 9, client_id="fuzz"),
    ]
    frames = ordered if draw(st.integers(0, 3)) else draw(st.permutations(ordered))
    at = draw(st.integers(0, len(frames) - 1))
    changed = draw(mutated(st.just(frames[at][4:])))
    size = len(changed) + draw(st.sampled_from([0, 0, 0, 1, -1]))
    bare = draw(TOKENS)
    return [
        *frames[:at],
        struct.pack(">i", size) + changed,
        *([struct.pack(">i", len(bare)) + bare] if draw(st.booleans()) else []),
        *frames[at + 1 :],
    ]


CLIENT_HELLO = bytes.fromhex(
    "16030100c5010000c10303"
    + "11" * 32
    + "20"
    + "22" * 32
    + "003e130213031301c02cc030009fcca9cca8ccaac02bc02f009e"
    "c024c028006bc023c0270067c00ac0140039c009c0130033009d009c003d003c0035002f00ff0100003a000b000403000102000a000c000a"
    "001d0017001e00190018002300000016000000170000000d0004000204030403002b00050403040303002d00020101"
)


@QUICK
@given(frames=conversations(), encrypted=st.booleans())
def test_mutated_authentications_disturb_nobody(scene: Scene, frames: list[bytes], encrypted: bool) -> None:
    scene.survives(scene.connect(scene.sasl_ssl if encrypted else scene.sasl), *frames)


@QUICK
@given(hello=mutated(st.just(CLIENT_HELLO)) | st.binary(max_size=200), port=st.integers(1, 3))
def test_mutated_handshakes_and_bytes_that_are_no_tls_disturb_nobody(
    scene: Scene, hello: bytes, port: int
) -> None:
    scene.survives(WireSocket(scene.port + port, timeout_s=60), hello)


@QUICK
@given(frames=st.lists(mutated_frames() | FRAMES, min_size=1, max_size=3), port=st.integers(1, 3))
def test_mutated_requests_of_an_authenticated_client_disturb_nobody(
    scene: Scene, frames: list[bytes], port: int
) -> None:
    connection = scene.connect(scene.port + port)
    if scene.port + port != scene.ssl:
        assert not log_in(connection, MECHANISM, "alice", "alice-secret").error_code
    scene.survives(connection, *frames)


@QUICK
@given(frames=conversations())
def test_mutated_authentications_on_an_open_connection_disturb_nobody(
    scene: Scene, frames: list[bytes]
) -> None:
    connection = scene.connect(scene.sasl_ssl)
    assert not log_in(connection, MECHANISM, "alice", "alice-secret").error_code
    scene.survives(connection, *frames)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@LONG
@given(
    frames=conversations() | st.lists(mutated_frames() | FRAMES, min_size=1, max_size=4),
    port=st.integers(1, 3),
    logs_in=st.booleans(),
)
def test_mutated_bytes_of_all_kinds_disturb_nobody_for_minutes(
    scene: Scene, frames: list[bytes], port: int, logs_in: bool
) -> None:
    connection = scene.connect(scene.port + port)
    if logs_in and scene.port + port != scene.ssl:
        assert not log_in(connection, MECHANISM, "alice", "alice-secret").error_code
    scene.survives(connection, *frames)
