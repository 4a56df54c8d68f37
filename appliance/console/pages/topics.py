"""Topics: the list, one topic with its partitions and settings; create, delete, change.

A list asks the broker for nothing but the names that the person may see, and that only after a change of the metadata;
numbers come from shared memory, for the rows that the page shows.
"""

from __future__ import annotations

from typing import Final

from appliance.cluster import TopicImage
from appliance.console.kafka_link import BrokerFault, check, not_done
from appliance.console.pages.paging import PER_PAGE, part_of
from appliance.console.server import Response
from appliance.console.visit import BadInput, Visit
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_partitions import CreatePartitionsRequest, PartitionsTopic
from appliance.protocol.apis.create_topics import (
    BROKER_DEFAULT,
    CreatableTopic,
    CreateTopicsRequest,
    TopicConfig,
)
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.describe_configs import (
    ConfigEntry,
    ConfigSource,
    DescribeConfigsRequest,
    DescribedResource,
    ResourceType,
)
from appliance.protocol.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    ConfigOperation,
    IncrementalAlterConfigsRequest,
)
from appliance.protocol.apis.topic_selector import TopicSelector

TIMEOUT_MS: Final = 20_000
PARTITIONS_MAX: Final = 1 << 20
REPLICAS_MAX: Final = 1 << 14
CONFIGS_MAX: Final = 100
SOURCES: Final = {
    ConfigSource.TOPIC_CONFIG: "set for the topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "set for the slot",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "set for all slots",
    ConfigSource.STATIC_BROKER_CONFIG: "configuration file",
    ConfigSource.DEFAULT_CONFIG: "default",
    ConfigSource.GROUP_CONFIG: "set for the group",
}
SORTS: Final = ("name", "partitions", "records", "size")


def topics(visit: Visit) -> Response:
    """The list, in pages."""
    wanted = visit.asked("q").strip()
    sort = visit.asked("sort", "name")
    with_internal = visit.asked("internal") == "1"
    topics_ = visit.image.topics
    names = [
        name
        for name in visit.topic_names()
        if wanted.lower() in name.lower() and (with_internal or not topics_[name].internal)
    ]
    with_sizes = visit.may_describe_cluster
    if sort == "partitions":
        names.sort(key=lambda name: -len(topics_[name].partitions))
    elif sort in {"records", "size"} and with_sizes:
        rows = {name: visit.look.topic(topics_[name]) for name in names}
        names.sort(key=lambda name: -(rows[name].records if sort == "records" else rows[name].log_bytes))
    part = part_of(visit, names)
    return visit.page(
        "topics.html",
        part=part,
        rows=[visit.look.topic(topics_[name]) for name in part.rows],
        q=wanted,
        sort=sort if sort in SORTS else "name",
        sorts=SORTS if with_sizes else SORTS[:2],
        with_internal=with_internal,
        with_sizes=with_sizes,
    )


def topic(visit: Visit) -> Response:
    """One topic and its partitions, in pages."""
    found = visit.topic(visit.asked("name"))
    part = part_of(visit, range(len(found.partitions)))
    return visit.page(
        "topic.html",
        topic=visit.look.topic(found),
        topic_id=str(found.topic_id),
        part=part,
        partitions=visit.look.partitions(found, part.first, PER_PAGE),
        with_sizes=visit.may_describe_cluster,
    )


# Settings


def described(visit: Visit, resource_type: ResourceType, name: str) -> list[ConfigEntry]:
    """Return the settings of a resource, in order of their names.

    Raises:
        BrokerFault: the broker does not answer, or refuses.
    """
    wanted = DescribedResource(int(resource_type), name)
    answer = visit.link.ask(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        DescribeConfigsRequest((wanted,), include_synonyms=True, include_documentation=True),
        slot=int(name) if resource_type is ResourceType.BROKER and name else None,
    )
    (result,) = answer.results
    check(result.error_code, result.error_message)
    return sorted(result.configs, key=lambda each: each.name)


def configs(visit: Visit) -> Response:
    """The settings of a topic, and where each comes from."""
    found = visit.topic(visit.asked("name"))
    entries = described(visit, ResourceType.TOPIC, found.name)
    return visit.page(
        "configs.html",
        topic=visit.look.topic(found),
        entries=entries,
        sources=SOURCES,
        own=ConfigSource.TOPIC_CONFIG,
        edit=visit.asked("edit"),
    )


def alter_config(visit: Visit) -> Response:
    """Set a setting of a topic, or return it to its default."""
    found = visit.topic(visit.asked("name"))
    key, operation = visit.asked("key"), visit.asked("operation")
    altered(visit, ResourceType.TOPIC, found.name, key, operation=operation, value=visit.asked("value"))
    return visit.back_to("/topic/configs", name=found.name)


def altered(
    visit: Visit, resource_type: ResourceType, name: str, key: str, *, operation: str, value: str
) -> None:
    """Change one setting, and say on the next page whether it is changed."""
    if operation not in {"set", "delete"}:
        raise BadInput("operation: must be set or delete")
    is_set = operation == "set"
    change = AlterableConfig(
        key, int(ConfigOperation.SET if is_set else ConfigOperation.DELETE), value if is_set else None
    )
    resource = AlterConfigsResource(int(resource_type), name, (change,))
    try:
        answer = visit.link.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            IncrementalAlterConfigsRequest((resource,)),
            slot=int(name) if resource_type is ResourceType.BROKER and name else None,
        )
        (result,) = answer.responses
        check(result.error_code, result.error_message)
    except BrokerFault as fault:
        visit.failed(not_done(f"{key} was not changed", fault))
    else:
        visit.done(f"{key} = {value}" if is_set else f"{key} has its default again")


# Create, add partitions, delete


def new_topic(visit: Visit) -> Response:
    """The form for a new topic."""
    return visit.page("new_topic.html", text="", fields={})


def create_topic(visit: Visit) -> Response:
    """Create a topic, or check the form only."""
    fields = dict(visit.request.form)
    try:
        wanted = _wanted_topic(visit)
        is_trial = visit.asked("trial") == "1"
        answer = visit.link.ask(
            ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest((wanted,), TIMEOUT_MS, validate_only=is_trial)
        )
        (result,) = answer.topics
        check(result.error_code, result.error_message)
    except (BadInput, BrokerFault) as fault:
        return visit.page("new_topic.html", status=400, text=str(fault), fields=fields)
    if is_trial:
        return visit.page(
            "new_topic.html",
            text=f"The broker would create {wanted.name} with {result.num_partitions} partitions"
            f" and {result.replication_factor} replicas of each.",
            fields=fields,
        )
    visit.done(f"topic {wanted.name} created")
    return visit.back_to("/topics", q=wanted.name)


def _wanted_topic(visit: Visit) -> CreatableTopic:
    settings = []
    for line in visit.asked("configs").splitlines()[: CONFIGS_MAX + 1]:
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise BadInput(f"settings: write NAME=VALUE, one on each line, and not {line!r}")
        settings.append(TopicConfig(name.strip(), value.strip()))
    if len(settings) > CONFIGS_MAX:
        raise BadInput(f"settings: at most {CONFIGS_MAX}")
    return CreatableTopic(
        visit.asked("name").strip(),
        visit.number("partitions", BROKER_DEFAULT, minimum=1, maximum=PARTITIONS_MAX),
        visit.number("replicas", BROKER_DEFAULT, minimum=1, maximum=REPLICAS_MAX),
        configs=tuple(settings),
    )


def add_partitions(visit: Visit) -> Response:
    """Give a topic more partitions."""
    found = visit.topic(visit.asked("name"))
    count = visit.number("count", 0, minimum=1, maximum=PARTITIONS_MAX)
    try:
        answer = visit.link.ask(
            ApiKey.CREATE_PARTITIONS,
            3,
            CreatePartitionsRequest((PartitionsTopic(found.name, count),), TIMEOUT_MS, False),
        )
        (result,) = answer.results
        check(result.error_code, result.error_message)
    except BrokerFault as fault:
        visit.failed(not_done("no partitions were added", fault))
    else:
        visit.done(f"topic {found.name} has {count} partitions")
    return visit.back_to("/topic", name=found.name)


def confirm_delete(visit: Visit) -> Response:
    """Ask whether to delete a topic."""
    found = visit.topic(visit.asked("name"))
    return _confirmation(visit, found, text="")


def _confirmation(visit: Visit, found: TopicImage, *, text: str) -> Response:
    return visit.page(
        "confirm.html",
        status=400 if text else 200,
        title=f"Delete topic {found.name}",
        what=f"This deletes the topic {found.name} with all of its records, on all replicas. Nothing brings them back.",
        name=found.name,
        noun="topic",
        action="/topic/delete",
        back="/topic",
        text=text,
    )


def delete_topic(visit: Visit) -> Response:
    """Delete a topic whose name the person has written."""
    found = visit.topic(visit.asked("name"))
    if visit.asked("typed") != found.name:
        return _confirmation(visit, found, text="The name that you have written is another one.")
    try:
        answer = visit.link.ask(
            ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest((TopicSelector(name=found.name),), TIMEOUT_MS)
        )
        (result,) = answer.responses
        check(result.error_code, result.error_message)
    except BrokerFault as fault:
        visit.failed(not_done(f"topic {found.name} was not deleted", fault))
        return visit.back_to("/topic", name=found.name)
    visit.done(f"topic {found.name} deleted")
    return visit.back_to("/topics")
