"""One file and flags become Settings; what is wrong is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.config import BrokerSettings, NetworkSettings, Settings, load_settings
from appliance.config.units import plain_value
from appliance.errors import ConfigurationError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_set_gives_the_declared_defaults() -> None:
    settings = load_settings()
    assert (settings.host, settings.port, settings.slots) == ("127.0.0.1", 9092, 1)
    assert settings.network.pool_bytes == 256 * 2**20
    assert settings.broker.default_replication_factor == 1
    assert settings.configured == {}
    assert settings.topic_defaults == {}


def test_flag_wins_over_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.toml", "port = 1000\nslots = 2\n")
    settings = load_settings(path, {"port": "2000"})
    assert (settings.port, settings.slots) == (2000, 2)


def test_quoted_names_tables_and_dotted_keys_mean_the_same(tmp_path: Path) -> None:
    quoted = write(tmp_path / "q.toml", '"network.processes" = 3\n"max.connections.per.ip" = 7\n')
    tables = write(tmp_path / "t.toml", "[network]\nprocesses = 3\n[max.connections]\nper.ip = 7\n")
    for path in (quoted, tables):
        network = load_settings(path).network
        assert (network.processes, network.connections_max_per_ip) == (3, 7)


def test_sizes_and_durations_take_units(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.toml", '"network.pool.bytes" = "256 MiB"\n"connections.max.idle.ms" = "1.5 min"\n'
    )
    network = load_settings(path).network
    assert (network.pool_bytes, network.connections_max_idle_ms) == (256 * 2**20, 90_000)


def test_relative_data_dir_starts_at_the_file_but_at_the_working_directory_for_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    path = write(tmp_path / "etc" / "a.toml", '"data.dir" = "here"\n')
    monkeypatch.chdir(tmp_path)
    assert load_settings(path).data_dir == tmp_path / "etc" / "here"
    assert load_settings(path, {"data.dir": "there"}).data_dir == tmp_path / "there"


def test_replication_factor_follows_the_number_of_slots() -> None:
    factors = {
        slots: load_settings(overrides={"slots": str(slots)}).broker.default_replication_factor
        for slots in (1, 2, 3, 5)
    }
    assert factors == {1: 1, 2: 2, 3: 3, 5: 3}


def test_broker_wide_names_set_topic_defaults_in_the_topic_settings_unit() -> None:
    settings = load_settings(overrides={"log.retention.hours": "2", "log.segment.bytes": "16 MiB"})
    assert settings.topic_defaults == {"retention.ms": "7200000", "segment.bytes": str(16 * 2**20)}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, "180000"),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, "4"),
        ({"log.retention.hours": "-1"}, "-1"),
    ],
)
def test_first_of_several_broker_wide_names_wins_as_in_kafka(given: dict[str, str], expected: str) -> None:
    assert load_settings(overrides=given).topic_defaults["retention.ms"] == expected


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("network.procesess", "network.processes"),
        ("slotss", "slots"),
        ("log.segment.byte", "log.segment.bytes"),
        ("segment.bytes", "log.segment.bytes"),
        ("retention.ms", "log.retention.ms"),
        ("log.dir", "data.dir"),
    ],
)
def test_unknown_option_is_refused_with_the_nearest_name(name: str, nearest: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_settings(overrides={name: "1"})
    assert name in str(refused.value)
    assert nearest in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "0"),
        ("port", "65536"),
        ("slots", "many"),
        ("slots", "1.5"),
        ("network.ring.slots", "1000"),
        ("network.pool.bytes", "1 MiB"),  # under socket.request.max.bytes
        ("auto.create.topics.enable", "yes"),
        ("socket.send.buffer.bytes", "-2"),
        ("default.replication.factor", "2"),  # more than slots
        ("log.cleanup.policy", "delete,shred"),
        ("log.retention.hours", "2 h"),  # no unit is an hour's
        ("log.roll.ms", "0"),
        ("log.segment.bytes", "9999999999"),  # over int32
        ("message.max.bytes", "99999999999999999999999"),
        ("host", ""),
    ],
)
def test_wrong_value_is_refused_and_the_option_named(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name.replace(".", r"\.")):
        load_settings(overrides={name: value})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("port = 'x'\n", "port"),
        ("port = true\n", "port"),
        ("port = [1]\n", "port"),
        ('"auto.create.topics.enable" = 1\n', "auto.create.topics.enable"),
        ("port = 1\nport = 2\n", "line 2"),
        ('"network.processes" = 1\n[network]\nprocesses = 1\n', "set twice"),
        ("port = \n", "line 1"),
        ("ports = 1\n", "did you mean port?"),
        ('slots = 4\nport = 65533\n"advertised.host" = "x"\n', "slots"),
    ],
)
def test_fault_in_a_file_names_the_file_and_the_place(tmp_path: Path, text: str, named: str) -> None:
    path = write(tmp_path / "a.toml", text)
    with pytest.raises(ConfigurationError) as refused:
        load_settings(path)
    assert str(path) in str(refused.value)
    assert named in str(refused.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff\xfe = 1")
    with pytest.raises(ConfigurationError, match="is not valid TOML"):
        load_settings(path)


def test_missing_file_and_directory_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        load_settings(tmp_path / "none.toml")
    with pytest.raises(ConfigurationError, match=tmp_path.name):
        load_settings(tmp_path)


def test_settings_outside_their_range_cannot_be_made() -> None:
    with pytest.raises(ConfigurationError, match=r"network\.processes"):
        NetworkSettings(processes=0)
    with pytest.raises(ConfigurationError, match=r"num\.partitions"):
        BrokerSettings(num_partitions=-1)
    with pytest.raises(ConfigurationError, match="slots"):
        Settings(slots=0)


def test_kafkas_properties_are_named_as_what_they_are(tmp_path: Path) -> None:
    text = "# Kafka\nbroker.id=0\nlisteners=PLAINTEXT://:9092\nlog.dirs=/var/lib/kafka\n"
    path = write(tmp_path / "server.properties", text)
    with pytest.raises(ConfigurationError, match=r"Kafka's format.*reads TOML.*docs/configuration.md"):
        load_settings(path)
    with pytest.raises(ConfigurationError, match="is not valid TOML"):
        load_settings(write(tmp_path / "a.toml", "port = \n"))


def test_alias_beside_its_option_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"num\.io\.threads: is another name of io\.workers"):
        load_settings(overrides={"num.io.threads": "2", "io.workers": "2"})


def test_alias_is_shown_as_the_option_it_is() -> None:
    settings = load_settings(overrides={"num.io.threads": "2"})
    assert settings.configured == {"io.workers": "2"}
    assert settings.aliases == {"num.io.threads": "io.workers"}


@pytest.mark.parametrize(
    ("name", "text", "plain"),
    [
        ("retention.ms", "7d", str(7 * 86_400_000)),
        ("segment.bytes", "64 MiB", str(64 << 20)),
        ("log.retention.ms", "1.5 h", "5400000"),
        ("consumer.session.timeout.ms", "45s", "45000"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "soon", "soon"),
        ("retention.ms", "7 MiB", "7 MiB"),
        ("cleanup.policy", "compact", "compact"),
        ("no.such.setting", "7d", "7d"),
    ],
)
def test_units_become_plain_numbers_where_the_setting_has_that_unit(name: str, text: str, plain: str) -> None:
    assert plain_value(name, text) == plain


def test_the_secret_of_delegation_tokens_is_not_taken_from_the_command_line_and_never_shown(
    tmp_path: Path,
) -> None:
    secret = "delegation.token.secret.key"
    with pytest.raises(ConfigurationError, match="read the command line") as refused:
        load_settings(None, {secret: "84123456789"})
    assert "84123456789" not in str(refused.value)
    file = tmp_path / "appliance.toml"
    file.write_text(f'"{secret}" = 84123456789\n')
    file.chmod(0o600)
    with pytest.raises(ConfigurationError, match=secret) as refused:
        load_settings(file)
    assert "84123456789" not in str(refused.value)
