"""Which listeners the options describe, and which they may not."""

from __future__ import annotations

import pytest

from appliance.config import Settings, describe_broker, load_settings
from appliance.config.sections.listeners import Listener
from appliance.errors import ConfigurationError


def loaded(**given: str) -> Settings:
    return load_settings(
        overrides={name if "." in name else name.replace("_", "."): text for name, text in given.items()}
    )


def test_without_listeners_there_is_one_in_plain_text_on_host_and_port() -> None:
    settings = loaded(host="::1", port="2000", advertised_host="logs.example")
    assert settings.listeners == (Listener("PLAINTEXT", "PLAINTEXT", "::1", 2000, "logs.example"),)
    assert settings.main_listener.advertised_text() == "PLAINTEXT://logs.example:2000"


def test_names_get_protocols_by_the_map_or_by_being_a_protocols_name() -> None:
    settings = loaded(
        listeners="internal://127.0.0.1:9092, EXTERNAL://[2001:db8::1]:9192,SSL://broker-1.example:9292,PLAINTEXT://:9392",
        listener_security_protocol_map="INTERNAL:PLAINTEXT,external:ssl",
        advertised_listeners="EXTERNAL://[2001:db8::2]:19192",
        ssl_keystore_location="/server.pem",
    )
    assert settings.listeners == (
        Listener("INTERNAL", "PLAINTEXT", "127.0.0.1", 9092),
        Listener("EXTERNAL", "SSL", "2001:db8::1", 9192, "2001:db8::2", 19192),
        Listener("SSL", "SSL", "broker-1.example", 9292),
        Listener("PLAINTEXT", "PLAINTEXT", "0.0.0.0", 9392),
    )
    assert (settings.host, settings.port) == ("127.0.0.1", 9092)


def test_the_main_listener_is_the_first_in_plain_text() -> None:
    settings = loaded(
        listeners="SSL://127.0.0.1:9093,PLAINTEXT://[::1]:9092", ssl_keystore_location="/server.pem"
    )
    assert (settings.main_listener.name, settings.host, settings.port) == ("PLAINTEXT", "::1", 9092)


def test_a_slot_shows_its_own_ports_of_every_listener() -> None:
    settings = loaded(
        slots="3",
        listeners="INTERNAL://127.0.0.1:9092,EXTERNAL://[::1]:9192",
        listener_security_protocol_map="INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
        advertised_listeners="EXTERNAL://logs.example:19192",
    )
    told = {each.name: each.value for each in describe_broker(settings, 2)}
    assert told["listeners"] == "INTERNAL://127.0.0.1:9094,EXTERNAL://[::1]:9194"
    assert told["advertised.listeners"] == "INTERNAL://127.0.0.1:9094,EXTERNAL://logs.example:19194"
    assert told["listener.security.protocol.map"] == "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT"


def test_a_listener_may_have_its_own_mechanisms() -> None:
    settings = loaded(
        **{
            "listeners": "IN://127.0.0.1:9092,OUT://127.0.0.1:9192,SASL_PLAINTEXT://127.0.0.1:9292",
            "listener.security.protocol.map": "IN:SASL_PLAINTEXT,OUT:SASL_SSL",
            "listener.name.in.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "sasl.plain.users.file": "/users",
            "ssl.keystore.location": "/server.pem",
        }
    )
    assert [settings.sasl.mechanisms_of(each.name) for each in settings.listeners] == [
        ("PLAIN", "SCRAM-SHA-512"),
        ("SCRAM-SHA-256",),
        ("SCRAM-SHA-256",),
    ]
    assert [(each.is_sasl, each.is_tls) for each in settings.listeners] == [
        (True, False),
        (True, True),
        (True, False),
    ]
    assert all(map(settings.authenticates, settings.listeners))
    told = {each.name: each.value for each in describe_broker(settings, 0)}
    assert told["listener.name.in.sasl.enabled.mechanisms"] == "PLAIN,SCRAM-SHA-512"
    assert told["sasl.enabled.mechanisms"] == "SCRAM-SHA-256"


def test_a_listener_may_have_its_own_certificate_and_ask_for_its_clients() -> None:
    settings = loaded(
        **{
            "listeners": "IN://127.0.0.1:9092,OUT://127.0.0.1:9192,SASL_SSL://127.0.0.1:9292",
            "listener.security.protocol.map": "IN:SSL,OUT:SASL_SSL",
            "ssl.keystore.location": "/server.pem",
            "ssl.truststore.location": "/ca.pem",
            "ssl.client.auth": "requested",
            "listener.name.in.ssl.certificate.file": "/in.pem",
            "listener.name.in.ssl.key.file": "/in.key",
            "listener.name.in.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
            "listener.name.out.ssl.client.auth": "required",
            "listener.name.out.ssl.enabled.protocols": "TLSv1.3",
        }
    )
    inner, outer, plain = map(settings.tls_of, settings.listeners)
    assert (inner.keystore_location, inner.certificate_file, inner.key_file) == (None, "/in.pem", "/in.key")
    assert (inner.client_auth, inner.principal_mapping_rules) == ("requested", "RULE:^CN=(.*)$/$1/")
    assert (outer.keystore_location, outer.client_auth) == ("/server.pem", "required")
    assert outer.enabled_protocols == ("TLSv1.3",)
    # As in Kafka (KIP-684): what is set for all listeners does not count where clients log in with SASL.
    assert (plain.client_auth, plain.principal_mapping_rules) == ("none", "DEFAULT")
    told = {each.name: each.value for each in describe_broker(settings, 0)}
    assert told["listener.name.out.ssl.client.auth"] == "required"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"listener.name.out.ssl.client.auth": "none"}, "no listener OUT with the protocol SSL"),
        ({"listener.name.plaintext.ssl.client.auth": "none"}, "no listener PLAINTEXT with"),
        ({"listener.name.ssl.ssl.client.auth": "maybe"}, "listener.name.ssl.ssl.client.auth"),
        ({"listener.name.ssl.ssl.client.auth": "required"}, "listener.name.ssl: .*ssl.truststore.location"),
        ({"listener.name.ssl.ssl.key.file": "/key"}, "listener.name.ssl: .*belong together"),
        ({"listener.name.ssl.ssl.handshakes.max": "5"}, "listener.name.ssl.ssl.handshakes.max"),
        ({"listener.name.ssl.ssl.provider": "x"}, "listener.name.ssl.ssl.provider"),
    ],
)
def test_what_is_wrong_with_tls_of_one_listener_is_told(given: dict[str, str], why: str) -> None:
    both = {"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9192", "ssl.keystore.location": "/k.pem"}
    with pytest.raises(ConfigurationError, match=why):
        loaded(**both, **given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"listeners": "INTERNAL://127.0.0.1:9092"}, "no security protocol for listener INTERNAL"),
        ({"listeners": "127.0.0.1:9092"}, "must be NAME://host:port"),
        ({"listeners": "PLAINTEXT://::1:9092"}, "must be NAME://host:port"),
        ({"listeners": "PLAINTEXT://127.0.0.1:70000"}, "must be NAME://host:port"),
        ({"listeners": "PLAINTEXT://a:9092,PLAINTEXT://b:9192"}, "two listeners with the name PLAINTEXT"),
        ({"listeners": "SASL_SSL://127.0.0.1:9092"}, "SASL_SSL has the protocol SASL_SSL: set ssl.keystore"),
        (
            {"listeners": "SASL_PLAINTEXT://127.0.0.1:9092", "sasl_enabled_mechanisms": ""},
            "set sasl.enabled.mechanisms",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://127.0.0.1:9092", "sasl_enabled_mechanisms": "SCRAM-SHA-1"},
            "must be any of PLAIN, SCRAM-SHA-256",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://127.0.0.1:9092", "sasl_enabled_mechanisms": "PLAIN"},
            "set sasl.plain.users.file",
        ),
        (
            {"listeners": "PLAINTEXT://a:1", "listener.name.other.sasl.enabled.mechanisms": "PLAIN"},
            "OTHER is not in listeners",
        ),
        (
            {
                "listeners": "SASL_PLAINTEXT://a:1",
                "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "GSSAPI",
            },
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms = 'GSSAPI'",
        ),
        ({"listener.name.x.sasl.enabled.mechanisms": "PLAIN"}, "has no effect without listeners"),
        (
            {"listeners": "X://a:1", "listener_security_protocol_map": "X:TLS"},
            "must be one of PLAINTEXT, SSL",
        ),
        ({"listeners": "X://a:1", "listener_security_protocol_map": "X"}, "must be NAME:PROTOCOL"),
        (
            {"listeners": "SSL://a:1", "listener_security_protocol_map": "X:SSL"},
            "map: X is not in listeners",
        ),
        (
            {"listeners": "PLAINTEXT://a:1", "advertised_listeners": "X://b:1"},
            "X is not in listeners",
        ),
        (
            {"listeners": "PLAINTEXT://a:1", "advertised_listeners": "PLAINTEXT://0.0.0.0:1"},
            "clients cannot connect to every address",
        ),
        ({"listeners": "PLAINTEXT://a:9092", "port": "9092"}, "port: listeners say it"),
        ({"listeners": "PLAINTEXT://a:9092", "advertised_host": "b"}, "advertised.host: listeners say it"),
        ({"advertised_listeners": "PLAINTEXT://a:9092"}, "advertised.listeners: "),
        ({"listeners": "PLAINTEXT://a:9092,SSL://a:9094", "slots": "3"}, "they must not overlap"),
        ({"listeners": "PLAINTEXT://a:65535", "slots": "2"}, "would exceed 65535"),
        ({"listeners": "SSL://a:9092"}, "SSL has the protocol SSL: set ssl.keystore.location"),
        ({"listeners": "SHARED_MEMORY://a:9092"}, "SHARED_MEMORY is reserved"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        loaded(**given)
