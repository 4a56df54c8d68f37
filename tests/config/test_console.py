"""Which consoles a configuration may have: none that strangers could use, and none that could not log in."""

from __future__ import annotations

from typing import Any, Final

import pytest

from appliance.channels.roles import CONSOLE, RoleKind, planned_roles
from appliance.config import load_settings
from appliance.errors import ConfigurationError
from appliance.process.confinement import ports_of

SASL: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,SASL_PLAINTEXT://0.0.0.0:9192",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
}
LOCAL: Final = {"console.listener": "127.0.0.1:9645"}
OPEN: Final = {"console.listener": "0.0.0.0:9645"}


def settings(**more: str) -> Any:
    return load_settings(None, {"data.dir": "/nowhere", **more})


def test_there_is_no_console_without_the_option() -> None:
    assert CONSOLE not in planned_roles(settings())
    assert not settings().counts_traffic
    assert CONSOLE in planned_roles(settings(**LOCAL))
    assert settings(**LOCAL).counts_traffic


@pytest.mark.parametrize(
    "text", ["9645", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "http://127.0.0.1:9645"]
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"console\.listener = .*: must be HOST:PORT"):
        settings(**{"console.listener": text})


def test_other_hosts_reach_the_console_only_if_the_operator_says_so() -> None:
    with pytest.raises(ConfigurationError, match=r"set console\.insecure = true"):
        settings(**OPEN, **SASL)
    assert settings(**OPEN, **SASL, **{"console.insecure": "true"}).console.is_on


def test_without_authentication_the_console_is_for_this_host_only() -> None:
    with pytest.raises(ConfigurationError, match="do not authenticate"):
        settings(**OPEN, **{"console.insecure": "true"})
    with pytest.raises(ConfigurationError, match="do not authenticate"):
        settings(**OPEN, **SASL, **{"console.insecure": "true", "console.kafka.listener": "PLAINTEXT"})
    assert settings(**{"console.listener": "[::1]:9645"}).console.is_local
    assert settings(**{"console.listener": "localhost:9645"}).console.is_local


def test_the_console_logs_in_where_it_can() -> None:
    assert settings(**LOCAL).console_listener.name == "PLAINTEXT"
    assert settings(**LOCAL, **SASL).console_listener.name == "SASL_PLAINTEXT"
    named = settings(**LOCAL, **SASL, **{"console.kafka.listener": "PLAINTEXT"})
    assert named.console_listener.name == "PLAINTEXT"
    both = {**SASL, "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", "sasl.plain.users.file": "/u"}
    found = settings(**LOCAL, **both)
    assert found.console_mechanisms(found.console_listener) == ("SCRAM-SHA-256", "PLAIN")


def test_a_listener_that_the_console_cannot_use_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="X is not in listeners"):
        settings(**LOCAL, **{"console.kafka.listener": "X"})
    tokens = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": "https://localhost/keys",
    }
    with pytest.raises(ConfigurationError, match="needs a listener"):
        settings(**LOCAL, **tokens)
    with pytest.raises(ConfigurationError, match="needs a listener"):
        settings(**LOCAL, **tokens, **{"console.kafka.listener": "SASL_PLAINTEXT"})


@pytest.mark.parametrize("url", ["127.0.0.1:8081", "ftp://h", "http://", "http://u:p@h", "http://h:99999"])
def test_a_registry_that_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"console\.schema\.registry\.url = .*: must be http"):
        settings(**LOCAL, **{"console.schema.registry.url": url})


def test_the_console_may_connect_to_the_slots_and_the_registry_only() -> None:
    plain = settings(**LOCAL)
    assert list(ports_of(RoleKind.CONSOLE, plain)) == [9092]
    with_registry = settings(**LOCAL, **{"console.schema.registry.url": "https://registry.example/api"})
    assert list(ports_of(RoleKind.CONSOLE, with_registry)) == [9092, 443]
    assert list(ports_of(RoleKind.NETPROC, with_registry)) == []
