"""Incremental fetch sessions: the table at the head of `fetch_session.py`, row by row, and a model."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.protocol.errors import ErrorCode
from appliance.requests.fetch_session import (
    EPOCH_LIMIT,
    EVICTABLE_AFTER_MS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSessions,
    PartitionKey,
    SessionPartition,
    SessionTurn,
)


def wanted(*partitions: int, offset: int = 0) -> tuple[SessionPartition, ...]:
    return tuple(SessionPartition("t", p, offset, 1 << 20) for p in partitions)


def turn(
    sessions: FetchSessions,
    session_id: int,
    epoch: int,
    partitions: tuple[SessionPartition, ...] = (),
    *,
    forgotten: tuple[PartitionKey, ...] = (),
    by_id: bool = False,
    now_ms: int = 0,
    principal: str = "User:alice",
) -> SessionTurn:
    return sessions.turn(
        session_id,
        epoch,
        partitions,
        forgotten,
        principal=principal,
        uses_topic_ids=by_id,
        now_ms=now_ms,
    )


def test_a_request_without_session_is_answered_whole_and_forgotten() -> None:
    sessions = FetchSessions(10)
    answer = turn(sessions, 0, FINAL_EPOCH, wanted(0, 1))
    assert (answer.session_id, answer.incremental, len(answer.partitions)) == (0, False, 2)
    assert len(sessions) == 0


def test_a_session_remembers_what_was_wanted() -> None:
    sessions = FetchSessions(10)
    made = turn(sessions, 0, INITIAL_EPOCH, wanted(0, 1, 2))
    assert made.session_id > 0
    next_turn = turn(sessions, made.session_id, 1, wanted(1, offset=7), forgotten=(("t", 2),))
    assert next_turn.incremental
    assert [(p.partition, p.fetch_offset) for p in next_turn.partitions] == [(0, 0), (1, 7)]


def test_a_lost_response_is_noticed_by_the_epoch() -> None:
    sessions = FetchSessions(10)
    made = turn(sessions, 0, INITIAL_EPOCH, wanted(0))
    assert turn(sessions, made.session_id, 1).error == 0
    assert turn(sessions, made.session_id, 1).error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert turn(sessions, made.session_id, 2).error == 0


def test_an_unknown_session_is_refused() -> None:
    assert turn(FetchSessions(10), 99, 1).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_another_principal_neither_uses_nor_ends_a_session() -> None:
    sessions = FetchSessions(10)
    made = turn(sessions, 0, INITIAL_EPOCH, wanted(0))
    guessed = turn(sessions, made.session_id, 1, principal="User:mallory")
    assert (guessed.error, guessed.partitions) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ())
    for epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        assert turn(sessions, made.session_id, epoch, principal="User:mallory").error == 0
    assert [p.partition for p in turn(sessions, made.session_id, 1).partitions] == [0]


def test_names_and_ids_do_not_mix_in_one_session() -> None:
    sessions = FetchSessions(10)
    made = turn(sessions, 0, INITIAL_EPOCH, wanted(0))
    assert turn(sessions, made.session_id, 1, by_id=True).error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_final_epoch_forgets_the_session() -> None:
    sessions = FetchSessions(10)
    made = turn(sessions, 0, INITIAL_EPOCH, wanted(0))
    assert turn(sessions, made.session_id, FINAL_EPOCH, wanted(0)).session_id == 0
    assert len(sessions) == 0


def test_a_full_cache_gives_no_session_until_one_is_idle_for_long() -> None:
    sessions = FetchSessions(1)
    first = turn(sessions, 0, INITIAL_EPOCH, wanted(0))
    assert turn(sessions, 0, INITIAL_EPOCH, wanted(1), now_ms=1).session_id == 0
    later = turn(sessions, 0, INITIAL_EPOCH, wanted(1), now_ms=EVICTABLE_AFTER_MS + 1)
    assert later.session_id not in (0, first.session_id)
    assert len(sessions) == 1


def test_new_session_that_has_no_room_for_its_partitions_is_not_made_until_one_is_idle_for_long() -> None:
    sessions = FetchSessions(10, partitions_max=4)
    first = turn(sessions, 0, INITIAL_EPOCH, wanted(0, 1, 2))
    refused = turn(sessions, 0, INITIAL_EPOCH, wanted(0, 1), now_ms=1)
    assert (refused.session_id, refused.error, len(refused.partitions)) == (0, 0, 2)
    later = turn(sessions, 0, INITIAL_EPOCH, wanted(0, 1), now_ms=EVICTABLE_AFTER_MS + 1)
    assert later.session_id not in (0, first.session_id)
    sessions.check()
    assert len(sessions) == 1


def test_session_that_grows_beyond_the_bound_ends() -> None:
    sessions = FetchSessions(10, partitions_max=4)
    made = turn(sessions, 0, INITIAL_EPOCH, wanted(0, 1, 2))
    assert turn(sessions, made.session_id, 1, wanted(3), forgotten=(("t", 0),)).error == 0
    assert turn(sessions, made.session_id, 2, wanted(4)).error == 0
    ended = turn(sessions, made.session_id, 3, wanted(5))
    assert ended.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    sessions.check()
    assert len(sessions) == 0
    assert turn(sessions, 0, INITIAL_EPOCH, wanted(0, 1, 2, 3)).session_id != 0


def test_the_epoch_goes_on_at_one_after_the_greatest() -> None:
    sessions = FetchSessions(10)
    made = turn(sessions, 0, INITIAL_EPOCH, wanted(0))
    assert made.session is not None
    made.session.epoch = EPOCH_LIMIT
    assert turn(sessions, made.session_id, EPOCH_LIMIT).error == 0
    assert turn(sessions, made.session_id, 1).error == 0


def test_a_partition_that_had_records_is_looked_at_last() -> None:
    sessions = FetchSessions(10)
    made = turn(sessions, 0, INITIAL_EPOCH, wanted(0, 1))
    assert made.session is not None
    made.session.to_the_end(("t", 0))
    assert [p.partition for p in turn(sessions, made.session_id, 1).partitions] == [1, 0]


def test_an_incremental_answer_mentions_only_news() -> None:
    (partition,) = wanted(0)
    news = {"error": 0, "high_watermark": 5, "log_start": 0}
    assert partition.has_news(records_bytes=0, **news)
    assert not partition.has_news(records_bytes=0, **news)
    assert partition.has_news(records_bytes=1, **news)
    assert partition.has_news(records_bytes=0, **(news | {"high_watermark": 6}))
    assert partition.has_news(records_bytes=0, **(news | {"high_watermark": 6, "error": 3}))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 5), max_size=4), st.lists(st.integers(0, 5), max_size=3)),
        max_size=20,
    )
)
def test_a_session_is_the_sum_of_its_requests(steps: list[tuple[list[int], list[int]]]) -> None:
    sessions = FetchSessions(4)
    made = turn(sessions, 0, INITIAL_EPOCH, wanted(0))
    model = {0: 0}
    for epoch, (added, forgotten) in enumerate(steps, start=1):
        answer = turn(
            sessions,
            made.session_id,
            epoch,
            wanted(*added, offset=epoch),
            forgotten=tuple(("t", p) for p in forgotten),
        )
        model |= dict.fromkeys(added, epoch)
        model = {p: offset for p, offset in model.items() if p not in forgotten}
        sessions.check()
        assert {p.partition: p.fetch_offset for p in answer.partitions} == model
        if not model:
            assert len(sessions) == 0
            return
