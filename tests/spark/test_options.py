"""Options: the names that spark-sql-kafka's users know; what is wrong is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_connector.directory import Isolation
from spark_connector.option_values import InvalidOption
from spark_connector.options import COLUMNS, EARLIEST, KNOWN, LATEST, View, Way, columns_of, read_options

BARE = {"path": "/data", "subscribe": "orders"}


def refused(options: dict[str, str], *, streaming: bool = False) -> str:
    """The name that the refusal says."""
    with pytest.raises(InvalidOption) as raised:
        read_options(options, streaming=streaming)
    assert str(raised.value).startswith(f"option {raised.value.name}: ")
    return raised.value.name


def test_a_batch_reads_everything_and_a_stream_what_comes() -> None:
    batch, stream = read_options(BARE, streaming=False), read_options(BARE, streaming=True)
    assert (batch.starting.way, batch.ending.way) == (Way.EARLIEST, Way.LATEST)
    assert stream.starting.way is Way.LATEST
    assert batch.isolation is Isolation.READ_UNCOMMITTED
    assert batch.fail_on_data_loss
    assert batch.columns == COLUMNS
    assert batch.view is View.RECORDS


def test_names_may_be_written_in_any_case() -> None:
    options = read_options(
        {"PATH": "/data", "SubscribePattern": "ord.*", "STARTINGOFFSETS": "Earliest"}, streaming=True
    )
    assert options.choice.pattern == "ord.*"
    assert options.starting.way is Way.EARLIEST


def test_several_directories_are_given_as_list_or_json() -> None:
    assert read_options({**BARE, "path": "/a, /b"}, streaming=False).paths == ("/a", "/b")
    several = {"paths": '["/a", "/b,c"]', "subscribe": "orders"}
    assert read_options(several, streaming=False).paths == ("/a", "/b,c")


def test_a_relative_path_is_the_same_for_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = read_options({**BARE, "path": "data,s3://bucket/export"}, streaming=False)
    assert options.paths == (str(tmp_path / "data"), "s3://bucket/export")


def test_offsets_are_read_by_partition() -> None:
    given = {
        **BARE,
        "startingOffsets": '{"orders": {"0": 23, "1": -2}}',
        "endingOffsets": '{"orders":{"0":-1}}',
    }
    options = read_options(given, streaming=False)
    assert options.starting.numbers == {"orders": {0: 23, 1: EARLIEST}}
    assert options.ending.numbers == {"orders": {0: LATEST}}


def test_a_job_that_moves_over_keeps_what_it_says_about_its_broker() -> None:
    moved = {
        **BARE,
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.isolation.level": "read_committed",
        "kafkaConsumer.pollTimeoutMs": "1000",
        "groupIdPrefix": "etl",
        "maxOffsetsPerTrigger": "10",
    }
    options = read_options(moved, streaming=False)
    assert options.isolation is Isolation.READ_COMMITTED
    assert options.ignored == (
        "groupidprefix",
        "kafka.bootstrap.servers",
        "kafka.security.protocol",
        "kafkaconsumer.polltimeoutms",
        "maxOffsetsPerTrigger",
    )


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"subscribe": "orders"}, "path"),
        ({"path": "/data"}, "subscribe"),
        ({**BARE, "assign": '{"orders": [0]}'}, "assign"),
        ({**BARE, "startingOfsets": "earliest"}, "startingofsets"),
        ({**BARE, "startingOffsets": "earliest", "startingTimestamp": "1"}, "startingTimestamp"),
        ({**BARE, "endingOffsets": "latest", "endingOffsetsByTimestamp": "{}"}, "endingOffsetsByTimestamp"),
        ({**BARE, "startingOffsets": "latest"}, "startingOffsets"),
        ({**BARE, "startingOffsets": '{"orders": {"0": -1}}'}, "startingOffsets"),
        ({**BARE, "startingOffsets": '{"orders": {"0": -3}}'}, "startingOffsets"),
        ({**BARE, "startingOffsets": '{"orders": {"x": 1}}'}, "startingOffsets"),
        ({**BARE, "startingOffsets": '{"orders": {"0": true}}'}, "startingOffsets"),
        ({**BARE, "startingOffsets": "soon"}, "startingOffsets"),
        ({**BARE, "endingOffsets": "earliest"}, "endingOffsets"),
        ({**BARE, "endingOffsets": '{"orders": {"0": -2}}'}, "endingOffsets"),
        ({**BARE, "startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({**BARE, "startingTimestamp": "6", "endingTimestamp": "5"}, "endingTimestamp"),
        (
            {**BARE, "startingOffsets": '{"orders": {"0": 6}}', "endingOffsets": '{"orders": {"0": 5}}'},
            "endingOffsets",
        ),
        (
            {
                **BARE,
                "startingOffsetsByTimestamp": '{"orders": {"0": 6}}',
                "endingOffsetsByTimestamp": '{"orders": {"0": 5}}',
            },
            "endingOffsetsByTimestamp",
        ),
        ({**BARE, "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({**BARE, "minPartitions": "0"}, "minPartitions"),
        ({**BARE, "maxRecordsPerPartition": "9999999999999999999"}, "maxRecordsPerPartition"),
        ({**BARE, "columns": "key,colour"}, "columns"),
        ({**BARE, "columns": "key,key"}, "columns"),
        ({**BARE, "columns": "key", "includeHeaders": "true"}, "includeHeaders"),
        ({**BARE, "view": "rows"}, "view"),
        ({**BARE, "splitBytes": "many"}, "splitBytes"),
        ({**BARE, "isolationLevel": "serializable"}, "isolationLevel"),
        (
            {**BARE, "isolationLevel": "read_committed", "kafka.isolation.level": "read_committed"},
            "isolationLevel",
        ),
        ({**BARE, "kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset"),
        ({**BARE, "subscribe": ""}, "subscribe"),
        ({"path": "/data", "subscribePattern": "("}, "subscribePattern"),
        ({"path": "/data", "assign": '{"orders": []}'}, "assign"),
        ({"path": "/data", "assign": "[" * 100_000}, "assign"),
    ],
)
def test_what_is_wrong_is_refused_by_name(options: dict[str, str], name: str) -> None:
    assert refused(options) == name


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({**BARE, "endingOffsets": "latest"}, "endingOffsets"),
        ({**BARE, "minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"}, "minOffsetsPerTrigger"),
        ({**BARE, "maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({**BARE, "commitGroup": "etl"}, "commitGroup"),
        ({**BARE, "view": "batches"}, "view"),
    ],
)
def test_what_a_stream_cannot_do_is_refused_by_name(options: dict[str, str], name: str) -> None:
    assert refused(options, streaming=True) == name


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("250", 250), ("250ms", 250), ("30s", 30_000), ("15m", 900_000), ("2 h", 7_200_000)],
)
def test_durations_have_units(text: str, milliseconds: int) -> None:
    options = read_options({**BARE, "maxTriggerDelay": text}, streaming=True)
    assert options.max_trigger_delay_ms == milliseconds


def test_columns_are_told_under_their_own_names() -> None:
    assert columns_of({**BARE, "columns": "OFFSET, timestamptype"}) == ("offset", "timestampType")
    assert columns_of({**BARE, "includeHeaders": "true"}) == (*COLUMNS, "headers")


def test_every_option_is_told_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    assert [name for name in KNOWN if f"`{name}`" not in guide] == []


@pytest.mark.parametrize(
    "text",
    [
        '{"orders": {"0": 5, "0": 9}}',
        '{"orders": {"0": 5, "00": 9}}',
        '{"orders": {"0": 5}, "orders": {"0": 9}}',
    ],
)
def test_a_partition_that_is_named_twice_is_refused(text: str) -> None:
    given = {"path": "data", "subscribe": "orders", "startingOffsets": text}
    with pytest.raises(InvalidOption, match="startingOffsets"):
        read_options(given, streaming=False)
