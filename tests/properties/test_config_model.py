"""Sequences of alterations leave what a small model says."""

from __future__ import annotations

from contextlib import suppress
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from appliance.channels.control_channel import AlteredResource, ConfigChange
from appliance.cluster import TopicImage
from appliance.config import GroupSettings
from appliance.control.controller.config_commands import Altering, plan_alteration
from appliance.errors import RejectedRequest

SET, DELETE, APPEND, SUBTRACT = range(4)
POLICY, RETENTION, REPLICAS = "cleanup.policy", "retention.ms", "leader.replication.throttled.replicas"
GOOD = {POLICY: ("delete", "compact", ""), RETENTION: ("-1", "0", "77"), REPLICAS: ("", "*", "0:1", "1:2")}
LISTS = {POLICY: ["delete"], REPLICAS: []}

changes = st.builds(
    ConfigChange,
    st.sampled_from([POLICY, RETENTION, REPLICAS, "no.such"]),
    st.sampled_from(
        ["delete", "compact", "delete,compact", "*", "0:1", "1:2,0:1", "77", "-1", "", "x", None]
    ),
    st.sampled_from([SET, DELETE, APPEND, SUBTRACT, 7]),
)
requests = st.tuples(st.lists(changes, max_size=3), st.booleans())


def allowed(name: str, value: str) -> bool:
    """What a topic takes, said in another way than the declarations say it."""
    if name not in GOOD:
        return False
    if name == REPLICAS and value not in {"", "*"}:
        return all(member in {"0:1", "1:2"} for member in value.split(","))
    members = value.split(",") if name == POLICY and value else [value]
    return all(member in GOOD[name] for member in members) and (value == "" or "" not in members)


def expected(configs: dict[str, str], wanted: list[ConfigChange], replace: bool) -> dict[str, str] | None:
    """The model: all settings afterwards, None for a refusal."""
    if len({change.name for change in wanted}) < len(wanted):
        return None
    result = {} if replace else dict(configs)
    for name, value, operation in ((each.name, each.value, each.operation) for each in wanted):
        if operation == DELETE:
            result.pop(name, None)
        elif value is None or operation == 7 or (operation != SET and name not in LISTS):
            return None
        elif operation == SET:
            result[name] = value
        else:
            members = [m for m in result[name].split(",") if m] if name in result else list(LISTS[name])
            for member in value.split(","):
                if operation == APPEND and member not in members:
                    members = [*members, member]
                elif operation == SUBTRACT and member in members:
                    members = [m for m in members if m != member]
            result[name] = ",".join(members)
    return result if all(allowed(*each) for each in result.items()) else None


def altering(topics: dict[str, TopicImage]) -> Altering:
    return Altering(topics, {}, {}, (0,), {}, GroupSettings())


@given(st.lists(requests, max_size=12))
def test_alterations_one_after_another_equal_the_model(
    sequence: list[tuple[list[ConfigChange], bool]],
) -> None:
    topic_id, configs = uuid4(), dict[str, str]()
    for wanted, replace in sequence:
        topics = {"t": TopicImage("t", topic_id, (), configs)}
        resource = AlteredResource(2, "t", tuple(wanted))
        try:
            after = plan_alteration(resource, altering(topics), replace=replace)
        except RejectedRequest:
            assert expected(configs, wanted, replace) is None
        else:
            assert after == expected(configs, wanted, replace)
            configs = after


@given(st.lists(changes, max_size=4), st.booleans())
def test_what_is_planned_leaves_what_was_there_untouched(wanted: list[ConfigChange], replace: bool) -> None:
    before = {RETENTION: "5", POLICY: "compact"}
    topics = {"t": TopicImage("t", uuid4(), (), before)}
    resource = AlteredResource(2, "t", tuple(wanted))
    with suppress(RejectedRequest):
        plan_alteration(resource, altering(topics), replace=replace)
    assert before == {RETENTION: "5", POLICY: "compact"}
