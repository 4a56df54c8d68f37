"""What has come and gone since a version is what makes that version's names into those of now."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.control.coordinator.group import consumer_changes, topic_names
from appliance.control.coordinator.group.topic_names import TopicNames
from appliance.control.coordinator.group.topic_regex import matching_topics
from appliance.protocol.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from tests.control.coordinator.group.consumer import Consumer
from tests.control.coordinator.group.scene import Cluster, Scene

NAMES = st.frozensets(st.sampled_from("abcdef"))


def named(cluster: Cluster, names: frozenset[str]) -> None:
    cluster.topics.clear()
    for name in names:
        cluster.create(name, 1)


@given(st.lists(NAMES, min_size=1, max_size=12))
def test_the_difference_leads_from_any_version_to_the_names_of_now(history: list[frozenset[str]]) -> None:
    cluster = Cluster()
    known = TopicNames(cluster)
    seen: dict[int, frozenset[str]] = {}
    for names in history:
        named(cluster, names)
        known.changed()
        assert known.all() == names
        seen[known.version] = names
        for version, before in seen.items():
            change = known.since(version)
            assert change is not None
            assert (before - change.went) | change.came == names
            assert not change.came & change.went


def test_what_was_too_long_ago_is_not_known_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_names, "NAMES_KEPT", 5)
    cluster = Cluster()
    known = TopicNames(cluster)
    for count in range(1, 8):
        named(cluster, frozenset("abcdefgh"[:count]))
        known.changed()
        known.all()
    assert known.since(known.version - 5) is not None
    assert known.since(known.version - 6) is None
    assert known.since(known.version + 1) is None


def test_many_expressions_are_held_against_new_topics_in_bounded_turns_and_none_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    members = [
        Consumer(scene, f"m{number}", subscribed_topic_names=(), subscribed_topic_regex=f"t.*{number}")
        for number in range(6)
    ]
    for member in members:
        member.join()
    matched: list[int] = []

    def counted(regex: str, names: frozenset[str]) -> tuple[str, ...]:
        matched[-1] += len(names)
        return matching_topics(regex, names)

    monkeypatch.setattr(consumer_changes, "matching_topics", counted)
    monkeypatch.setattr(consumer_changes, "MATCHES_A_TURN", 20)
    for number in range(12):
        scene.cluster.create(f"t{number}", 1)
    scene.groups.metadata_changed()

    def beats() -> None:
        for member in members:
            matched.append(0)
            assert isinstance(member.beat(), ConsumerGroupHeartbeatResponse)

    for _ in range(4):
        beats()
    assert max(matched) <= 20 + 12
    assert sum(matched) == 6 * 12
    assert [member.count for member in members] == [
        2,
        2,
        1,
        1,
        1,
        1,
    ]
    scene.restart()
    matched.clear()
    del scene.cluster.topics["t0"]
    scene.groups.metadata_changed()
    for _ in range(4):
        beats()
    assert max(matched) <= 20 + 11
    assert [member.count for member in members] == [1, 2, 1, 1, 1, 1]
