"""How the commands read the settings of librdkafka and of Kafka's tools, and what they refuse."""

from __future__ import annotations

import ssl
from pathlib import Path

import click
import pytest

from appliance.cli.client_settings import context_of, from_kafka, login_of, native_options, read_properties
from tests.support.pki import Authority


def properties(tmp_path: Path, text: str) -> dict[str, str]:
    file = tmp_path / "client.properties"
    file.write_text(text, encoding="utf-8")
    return read_properties(file)


def translated(tmp_path: Path, text: str) -> dict[str, str]:
    return from_kafka(tmp_path / "client.properties", properties(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a=1\nb = 2 \nc:3\nd 4\ne\n", {"a": "1", "b": "2 ", "c": "3", "d": "4", "e": ""}),
        ("# a=1\n! b=2\n\n   c=3", {"c": "3"}),
        ("a=one \\\n   two\nb=3", {"a": "one two", "b": "3"}),
        ("a=back\\\\\nb=2", {"a": "back\\", "b": "2"}),
        ("a\\=b\\ c=d", {"a=b c": "d"}),
        ("a=\\u00fc\\t\\n", {"a": "ü\t\n"}),
        ("a=x=y#z", {"a": "x=y#z"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=end\\", {"a": "end"}),
        ("", {}),
    ],
)
def test_properties_are_read_as_java_reads_them(tmp_path: Path, text: str, wanted: dict[str, str]) -> None:
    assert properties(tmp_path, text) == wanted


def test_a_line_without_a_name_is_told_with_its_number(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="line 3: must be NAME=VALUE"):
        properties(tmp_path, "a=1\n\n=2\n")


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    file = tmp_path / "keystore.jks"
    file.write_bytes(b"\xfe\xed\xfe\xed\x00")
    with pytest.raises(click.UsageError, match="this is no text file"):
        read_properties(file)


def test_pem_stores_become_settings_of_librdkafka(tmp_path: Path) -> None:
    text = (
        "security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=/ca.pem\n"
        "ssl.keystore.type=PEM\nssl.keystore.location=/both.pem\nssl.key.password=secret\n"
        "ssl.endpoint.identification.algorithm=\nbootstrap.servers=h:1\n"
    )
    assert translated(tmp_path, text) == {
        "security.protocol": "SSL",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/both.pem",
        "ssl.key.location": "/both.pem",
        "ssl.key.password": "secret",
        "ssl.endpoint.identification.algorithm": "none",
        "bootstrap.servers": "h:1",
    }


def test_a_login_with_a_password_is_passed_on(tmp_path: Path) -> None:
    text = (
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '  username="ann" password="a\\\\"b";\n'
    )
    found = translated(tmp_path, text)
    assert (found["sasl.username"], found["sasl.password"]) == ("ann", 'a"b')
    assert context_of(found) is not None
    login = login_of(found)
    assert login == ("SCRAM-SHA-256", "ann", 'a"b', False)
    assert 'a"b' not in repr(login)
    assert native_options(found) == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": "ann",
        "sasl_password": 'a"b',
    }


@pytest.mark.parametrize("spelled", ["tokenauth=true", 'tokenauth="true"', "tokenauth = true"])
def test_a_login_with_a_delegation_token_is_passed_on(tmp_path: Path, spelled: str) -> None:
    text = (
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="id" password="hmac tokenauth=false" {spelled};\n'
    )
    found = translated(tmp_path, text)
    assert login_of(found) == ("SCRAM-SHA-512", "id", "hmac tokenauth=false", True)
    assert context_of(found) is None
    assert native_options(found)["sasl_token_auth"] == "true"
    without = text.replace(spelled, "")
    assert login_of(translated(tmp_path, without)) == ("SCRAM-SHA-512", "id", "hmac tokenauth=false", False)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"security.protocol": "sasl_ssl"}, "GSSAPI: this command knows PLAIN"),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER: this command"),
        ({"security.protocol": "sasl_plaintext", "sasl.mechanisms": "PLAIN"}, "PLAIN needs sasl.username"),
    ],
)
def test_a_login_that_our_codec_cannot_do_is_told(settings: dict[str, str], told: str) -> None:
    with pytest.raises(click.UsageError, match=told):
        login_of(settings)
    with pytest.raises(click.UsageError, match="one of PLAINTEXT, SSL"):
        context_of({"security.protocol": "tls"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ssl.truststore.location=/trust.jks", "ssl.truststore.type is JKS: the command line reads PEM"),
        ("ssl.keystore.location=/k.p12\nssl.keystore.type=PKCS12", "ssl.keystore.type is PKCS12"),
        ("ssl.keystore.key=x", "belong together"),
        ("ssl.provider=x", "ssl.provider is not supported"),
        ("sasl.jaas.config=com.example.Kerberos required;", "ScramLoginModule or PlainLoginModule"),
        ("sasl.login.class=x", "sasl.login.class is not supported"),
    ],
)
def test_what_cannot_be_followed_about_security_is_an_error(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(click.UsageError, match=told):
        translated(tmp_path, text)


def test_what_is_not_about_security_is_left_out_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert translated(tmp_path, "group.id=g\nacks=all\nclient.id=c\n") == {"client.id": "c"}
    assert "not read by the command line: group.id, acks" in capsys.readouterr().err


def test_texts_in_place_of_files_make_a_context_that_shows_the_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("ann", "/CN=ann")
    found = {
        "security.protocol": "ssl",
        "ssl.ca.pem": authority.certificate.read_text(),
        "ssl.certificate.pem": issued.certificate.read_text(),
        "ssl.key.pem": issued.key.read_text(),
    }
    context = context_of(found)
    assert context is not None
    assert [each["subject"] for each in context.get_ca_certs()] == [((("commonName", "test authority"),),)]
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    loose = context_of({**found, "enable.ssl.certificate.verification": "false"})
    assert loose is not None
    assert loose.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ssl.ca.location": "/nowhere.pem"}, "/nowhere.pem: No such file"),
        ({"ssl.certificate.location": "{ca}", "ssl.key.location": "{key}"}, "belong together"),
        ({"ssl.key.location": "{key}"}, "needs ssl.certificate.location"),
        ({"ssl.cipher.suites": "x"}, "cannot follow ssl.cipher.suites"),
    ],
)
def test_files_and_settings_that_cannot_be_used_are_told(
    tmp_path: Path, change: dict[str, str], told: str
) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("ann", "/CN=ann")
    places = {"ca": authority.certificate, "key": issued.key}
    settings = {name: value.format(**places) for name, value in change.items()}
    with pytest.raises(click.UsageError, match=told):
        context_of({"security.protocol": "ssl", **settings})


def test_plain_text_needs_no_context_and_no_options() -> None:
    assert context_of({}) is None
    assert native_options({}) == {}


def test_the_native_client_gets_its_own_names() -> None:
    assert native_options(
        {
            "security.protocol": "ssl",
            "ssl.ca.location": "/ca.pem",
            "ssl.certificate.location": "/c.pem",
            "ssl.key.location": "/k.pem",
            "ssl.endpoint.identification.algorithm": "none",
        }
    ) == {
        "security_protocol": "SSL",
        "ssl_cafile": "/ca.pem",
        "ssl_certfile": "/c.pem",
        "ssl_keyfile": "/k.pem",
        "ssl_check_hostname": False,
    }
    with pytest.raises(click.UsageError, match="cannot follow"):
        native_options({"security.protocol": "ssl", "ssl.ca.pem": "x"})
