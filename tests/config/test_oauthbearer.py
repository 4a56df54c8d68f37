"""The options of OAUTHBEARER: which addresses and which combinations a start accepts."""

from __future__ import annotations

from typing import Final

import pytest

from appliance.config import Settings, load_settings
from appliance.config.declaration import text_of
from appliance.config.kafka_settings import kafka_broker_settings
from appliance.config.option import declared_fields
from appliance.config.sections.oauthbearer import OAuthBearerSettings
from appliance.errors import ConfigurationError

URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
TOKENS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,TOKENS://127.0.0.1:9192",
    "listener.security.protocol.map": "TOKENS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    URL: "https://identity.example/keys",
}


def made(**more: str) -> Settings:
    return load_settings(None, {**TOKENS, **{name.replace("_", "."): value for name, value in more.items()}})


def with_url(url: str, **more: str) -> Settings:
    return load_settings(None, {**TOKENS, URL: url, **more})


def test_the_defaults_are_kafkas() -> None:
    kafkas = kafka_broker_settings()
    compared = {
        declaration.name: (text_of(declaration.default) or None, kafkas[declaration.name].default or None)
        for _, declaration in declared_fields(OAuthBearerSettings)
        if declaration.name in kafkas
    }
    assert len(compared) == 9
    assert {name: own for name, (own, kafka) in compared.items() if own != kafka} == {}


def test_the_key_process_runs_only_for_listeners_with_tokens() -> None:
    assert made().validates_tokens
    assert not Settings().validates_tokens
    assert not made(sasl_enabled_mechanisms="SCRAM-SHA-256").validates_tokens
    assert load_settings(
        None,
        {
            **TOKENS,
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.tokens.sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER",
        },
    ).validates_tokens


def test_the_mechanism_needs_a_url() -> None:
    given = {name: value for name, value in TOKENS.items() if name != URL}
    with pytest.raises(ConfigurationError, match=f"OAUTHBEARER: set {URL}"):
        load_settings(None, given)


@pytest.mark.parametrize(
    "url",
    [
        "https://identity.example/keys",
        "https://identity.example:8443/keys?tenant=1",
        "HTTPS://identity.example/keys",
        "https://[2001:db8::1]/keys",
        "http://localhost:8080/keys",
        "http://127.1.2.3/keys",
        "http://[::1]:80/keys",
        "file:///etc/appliance/keys.json",
        "file://localhost/etc/appliance/keys.json",
    ],
)
def test_addresses_that_a_start_accepts(url: str) -> None:
    assert with_url(url).oauthbearer.jwks_url == url


@pytest.mark.parametrize(
    "url",
    [
        "identity.example/keys",
        "/etc/appliance/keys.json",
        "ftp://identity.example/keys",
        "gopher://identity.example/",
        "jar:file:///x!/keys",
        "javascript:alert(1)",
        "data:application/json,{}",
        "https://",
        "https:///keys",
        "https://user:secret@identity.example/keys",
        "https://identity.example/keys#part",
        "https://identity.example:99999/keys",
        "https://identity.example:port/keys",
        "https://[::1/keys",
        "https://identity.example/a b",
        "https://identity.example/\r\nHost: other",
        "file://other.example/etc/keys.json",
        "file:keys.json",
    ],
)
def test_addresses_that_a_start_refuses(url: str) -> None:
    with pytest.raises(ConfigurationError, match=URL):
        with_url(url)


@pytest.mark.parametrize(
    "host", ["identity.example", "10.0.0.1", "[2001:db8::1]", "localhost.example", "0.0.0.0"]
)
def test_keys_of_another_host_do_not_come_unencrypted(host: str) -> None:
    with pytest.raises(ConfigurationError, match="can replace the keys"):
        with_url(f"http://{host}/keys")
    assert with_url(f"http://{host}/keys", insecure="true").validates_tokens


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.oauthbearer.jwks.endpoint.refresh.ms", "999"),
        ("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "0"),
        ("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", "99"),
        ("sasl.oauthbearer.clock.skew.seconds", "-1"),
        ("sasl.oauthbearer.clock.skew.seconds", "86401"),
        ("sasl.oauthbearer.sub.claim.name", " "),
        ("sasl.oauthbearer.scope.claim.name", " "),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        load_settings(None, {**TOKENS, name: value})


def test_authorities_without_https_are_refused() -> None:
    option = "sasl.oauthbearer.jwks.endpoint.truststore.location"
    with pytest.raises(ConfigurationError, match="has no effect"):
        with_url("file:///etc/keys.json", **{option: "/etc/ca.pem"})
    assert load_settings(None, {**TOKENS, option: "/etc/ca.pem"}).validates_tokens
