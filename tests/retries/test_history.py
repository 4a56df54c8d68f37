"""What headers say of a record that was handed back: ours, and those of other libraries."""

from __future__ import annotations

import pytest

from appliance.retries.history import TEXT_BYTES_MAX, Headers, Place, cut, history_of, without_history

FIRST: Headers = [("retry.topic", b"orders"), ("retry.partition", b"2"), ("retry.offset", b"77")]


def spring(value: int, length_bytes: int) -> bytes:
    return value.to_bytes(length_bytes, "big", signed=True)


def test_without_headers_nothing_is_known() -> None:
    history = history_of([("mine", b"x")])
    assert history.first is None
    assert (history.attempts, history.replays, history.fault) == (0, 0, "")
    assert not history.is_dead
    assert not history.is_replay


def test_our_headers_say_where_the_record_was_at_first_and_how_often_it_failed() -> None:
    history = history_of(
        [*FIRST, ("retry.attempts", b"3"), ("retry.timestamp", b"1234"), ("retry.reason", b"why")]
    )
    assert history.first == Place("orders", 2, 77)
    assert (history.attempts, history.timestamp_ms, history.reason) == (3, 1234, "why")


def test_a_header_that_was_added_to_copied_ones_does_not_change_the_first_place_or_lower_the_count() -> None:
    copied = [*FIRST, ("retry.attempts", b"3"), ("retry.reason", b"old")]
    added = [
        ("retry.topic", b"orders.g.retry"),
        ("retry.offset", b"1"),
        ("retry.attempts", b"0"),
        ("retry.reason", b"new"),
    ]
    history = history_of([*copied, *added])
    assert history.first == Place("orders", 2, 77)
    assert history.attempts == 3
    assert history.reason == "new"


def test_without_a_topic_the_place_is_one_of_the_topic_that_the_group_retries() -> None:
    assert history_of(FIRST[1:]).first == Place("", 2, 77)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retry.attempts", b"many"),
        ("retry.attempts", b""),
        ("retry.attempts", b"-1"),
        ("retry.attempts", None),
        ("retry.attempts", b"9" * 19),
        ("retry.attempts", "\N{ARABIC-INDIC DIGIT THREE}".encode()),
        ("retry.partition", b"x"),
        ("retry.partition", b"2147483648"),
        ("retry.offset", b"\x00\x01"),
        ("retry.topic", b""),
        ("retry.topic", b"t" * 250),
        ("retry.replays", b"x"),
        ("retry.first.failed.timestamp", b"yesterday"),
    ],
)
def test_a_header_of_ours_that_cannot_be_read_is_a_fault_that_names_it(
    name: str, value: bytes | None
) -> None:
    headers = [(name, value), *(each for each in FIRST if each[0] != name)]
    assert name in history_of(headers).fault


def test_springs_binary_headers_are_understood() -> None:
    history = history_of(
        [
            ("kafka_original-topic", b"orders"),
            ("kafka_original-partition", spring(2, 4)),
            ("kafka_original-offset", spring(77, 8)),
            ("kafka_original-timestamp", spring(1_700_000_000_000, 8)),
            ("retry_topic-attempts", spring(3, 4)),
            ("kafka_exception-fqcn", b"java.lang.IllegalStateException"),
            ("kafka_exception-message", b"no stock"),
        ]
    )
    assert history.first == Place("orders", 2, 77)
    assert history.timestamp_ms == 1_700_000_000_000
    assert history.attempts + 1 == 2, "the third delivery is to come, so two have failed, this one included"
    assert (history.exception, history.reason) == ("java.lang.IllegalStateException", "no stock")
    dead = history_of(
        [
            ("kafka_dlt-original-topic", b"orders"),
            ("kafka_dlt-original-partition", spring(0, 4)),
            ("kafka_dlt-original-offset", spring(5, 8)),
        ]
    )
    assert dead.first == Place("orders", 0, 5)


@pytest.mark.parametrize("prefix", ["__connect.errors.", "__dlq.errors.", "__streams.errors."])
def test_the_text_headers_of_kafka_are_understood(prefix: str) -> None:
    history = history_of(
        [(f"{prefix}topic", b"orders"), (f"{prefix}partition", b"2"), (f"{prefix}offset", b"77")]
    )
    assert history.first == Place("orders", 2, 77)


def test_a_foreign_header_that_cannot_be_read_counts_as_missing() -> None:
    history = history_of(
        [
            ("kafka_original-topic", b"orders"),
            ("kafka_original-partition", b"2"),
            ("retry_topic-attempts", b"3"),
        ]
    )
    assert (history.first, history.attempts, history.fault) == (None, 0, "")


def test_the_users_own_headers_stay_and_ours_go() -> None:
    mine = [("a", b"1"), ("retry.mine", b"2"), ("a", None), ("traceparent", b"00-1-2-01")]
    assert without_history([*FIRST, *mine, ("__dlq.errors.topic", b"t")]) == mine


def test_a_long_reason_is_cut_between_characters() -> None:
    assert cut("é" * 100) == ("é" * 100).encode()
    short = cut("é" * 1_000_000)
    assert len(short) <= TEXT_BYTES_MAX
    assert short.decode().endswith("é…")
