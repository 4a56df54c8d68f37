"""The book of offsets: what a replay leaves in it is what the same records left when they were committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.control.coordinator.offsets.offset_book import OffsetBook, Replay
from appliance.protocol.records.offset_records import offset_key

Change = tuple[str, str, int, bytes | None]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(("g", "h", "")),
        st.sampled_from(("t", "u")),
        st.integers(0, 300),
        st.one_of(st.none(), st.binary(min_size=1, max_size=3)),
    ),
    max_size=60,
)


def content(book: OffsetBook) -> dict[tuple[str, str, int], bytes]:
    return {
        (group, topic, partition): value
        for group in book.groups()
        for topic, partitions in book.of(group).items()
        for partition, value in partitions.items()
    }


@given(CHANGES)
def test_replay_leaves_what_the_commits_left(changes: list[Change]) -> None:
    live, replayed = OffsetBook(), OffsetBook()
    replay = Replay(replayed)
    model: dict[tuple[str, str, int], bytes] = {}
    for group, topic, partition, value in changes:
        live.put(group, topic, partition, value)
        replay.put(offset_key(group, topic, partition), value)
        live.check()
        if value is None:
            model.pop((group, topic, partition), None)
        else:
            model[group, topic, partition] = value
    replay.done()
    replayed.check()
    assert content(live) == content(replayed) == model
    assert live.statistics()["offsets"] == len(model)
    assert {group for group, _, _ in model} == set(live.groups())


@given(CHANGES)
def test_tombstones_of_a_group_delete_all_of_it_and_nothing_else(changes: list[Change]) -> None:
    book = OffsetBook()
    for group, topic, partition, value in changes:
        book.put(group, topic, partition, value)
    others = {where: value for where, value in content(book).items() if where[0] != "g"}
    for record in book.tombstones("g"):
        assert record.value is None
        book.apply(record.key, record.value)
    assert not book.has("g")
    assert content(book) == others
