"""Quotas through a real controller process: altered, seen in the image, kept where Kafka had them."""

from __future__ import annotations

import json
import random

import pytest

from appliance.access.client_quotas import parts_of
from appliance.channels.control_channel import AlteredQuotas, AlterQuotas, QuotaChange, QuotaOutcomes
from appliance.cluster import QuotaEntity
from appliance.control.store.metadata_store import MetadataStore
from appliance.protocol.errors import ErrorCode
from tests.control.controller.conftest import NewInstance
from tests.control.controller.instance import Instance
from tests.control.controller.test_damage import without_room

SCRAM = "salt=c2FsdA==,stored_key=a2V5,server_key=a2V5,iterations=4096"
Parts = dict[str, str | None]


def altering(entity: Parts, **changes: float | None) -> AlteredQuotas:
    return AlteredQuotas(entity, tuple(QuotaChange(key, value) for key, value in changes.items()))


def alter(instance: Instance, *wanted: AlteredQuotas, validate_only: bool = False) -> list[int]:
    answer = instance.answer(instance.ask(AlterQuotas(wanted, validate_only)))
    assert isinstance(answer, QuotaOutcomes)
    return [each.error for each in answer.outcomes]


def shown(instance: Instance) -> dict[QuotaEntity, dict[str, float]]:
    return {each.entity: each.values for each in instance.image.quotas}


def config(instance: Instance, path: str) -> dict[str, str]:
    record = json.loads(instance.read_store(path))
    assert record["version"] == 1
    config: dict[str, str] = record["config"]
    return config


def children(instance: Instance, path: str) -> list[str]:
    store: MetadataStore = instance.open_store()
    try:
        return store.children(path)
    finally:
        store.close()


def test_quotas_are_in_kafkas_nodes_and_in_the_image_when_they_are_acknowledged(instance: Instance) -> None:
    wanted: dict[str, tuple[Parts, QuotaEntity]] = {
        "/config/users/alice": ({"user": "alice"}, QuotaEntity(user="alice")),
        "/config/users/<default>": ({"user": None}, QuotaEntity(user="")),
        "/config/clients/app": ({"client-id": "app"}, QuotaEntity(client_id="app")),
        "/config/clients/<default>": ({"client-id": None}, QuotaEntity(client_id="")),
        "/config/users/a%20b%2F%2A%7E/clients/%3Cdefault%3E": (
            {"user": "a b/*~", "client-id": "<default>"},
            QuotaEntity(user="a b/*~", client_id="<default>"),
        ),
        "/config/users/<default>/clients/<default>": (
            {"client-id": None, "user": None},
            QuotaEntity(user="", client_id=""),
        ),
        "/config/users/%2E%2E": ({"user": ".."}, QuotaEntity(user="..")),
    }
    alterations = [
        altering(parts, producer_byte_rate=1024.0, request_percentage=12.5) for parts, _ in wanted.values()
    ]
    assert alter(instance, *alterations) == [0] * len(wanted)
    values = {"producer_byte_rate": 1024.0, "request_percentage": 12.5}
    assert shown(instance) == {entity: values for _, entity in wanted.values()}
    for path in wanted:
        assert config(instance, path) == {"producer_byte_rate": "1024", "request_percentage": "12.5"}
    assert alter(instance, altering({"ip": "::1"}, connection_creation_rate=7.0)) == [0]
    assert config(instance, "/config/ips/%3A%3A1") == {"connection_creation_rate": "7"}


def test_what_only_was_to_be_validated_changes_nothing(instance: Instance) -> None:
    version = instance.images.version
    assert alter(
        instance,
        altering({"user": "u"}, producer_byte_rate=1.0),
        altering({"user": "u"}, producer_byte_rate=-1.0),
        validate_only=True,
    ) == [0, ErrorCode.INVALID_REQUEST]
    assert instance.images.version == version
    assert children(instance, "/config/users") == []


def test_keys_that_are_no_quotas_are_kept_and_not_shown(instance: Instance) -> None:
    store = instance.open_store()
    data = {"version": 1, "config": {"SCRAM-SHA-256": SCRAM, "consumer_byte_rate": "5"}}
    store.create("/config/users/alice", json.dumps(data).encode())
    store.close()
    # The controller has not read it: somebody else's keys are kept although they came behind its back.
    assert alter(instance, altering({"user": "alice"}, producer_byte_rate=9.0)) == [0]
    expected = {"SCRAM-SHA-256": SCRAM, "consumer_byte_rate": "5", "producer_byte_rate": "9"}
    assert config(instance, "/config/users/alice") == expected
    assert shown(instance) == {QuotaEntity(user="alice"): {"producer_byte_rate": 9.0}}
    assert alter(instance, altering({"user": "alice"}, producer_byte_rate=None)) == [0]
    assert config(instance, "/config/users/alice") == {"SCRAM-SHA-256": SCRAM, "consumer_byte_rate": "5"}
    assert shown(instance) == {}


def test_entities_without_quotas_leave_no_nodes(instance: Instance) -> None:
    both: Parts = {"user": "u", "client-id": "c"}
    other: Parts = {"user": "u", "client-id": "d"}
    alone: Parts = {"user": "u"}
    client: Parts = {"client-id": "c"}
    everything = [altering(each, producer_byte_rate=1.0) for each in (both, other, alone, client)]
    assert alter(instance, *everything) == [0] * 4
    assert alter(instance, altering(alone, producer_byte_rate=None)) == [0]
    assert children(instance, "/config/users/u/clients") == ["c", "d"]
    gone = [altering(each, producer_byte_rate=None) for each in (both, other, client)]
    assert alter(instance, *gone) == [0] * 3
    assert [children(instance, f"/config/{each}") for each in ("users", "clients")] == [[], []]
    # All of it in one turn, too.
    assert alter(instance, *everything) == [0] * 4
    assert alter(instance, altering(alone, producer_byte_rate=None), *gone) == [0] * 4
    assert children(instance, "/config/users") == []
    assert shown(instance) == {}


def test_a_tree_that_kafka_wrote_works(instance: Instance) -> None:
    instance.stop()
    store = instance.open_store()
    nodes = {
        "/config/users/<default>": '{"version":1,"config":{"producer_byte_rate":"1000"}}',
        "/config/users/bob": "",  # as Kafka makes it above a client id
        "/config/users/bob/clients": "",
        "/config/users/bob/clients/app%2F1": '{"version":1,"config":{"request_percentage":"50.0"}}',
        "/config/clients/old": '{"version":1,"config":{"consumer_byte_rate":"0"}}',
        "/config/ips/10.0.0.1": '{"version":1,"config":{"connection_creation_rate":"3"}}',
    }
    for path, text in nodes.items():
        store.create(path, text.encode())
    store.close()
    instance.start()
    instance.workers[0].hello()
    instance.until(lambda: bool(instance.image.quotas))
    assert shown(instance) == {
        QuotaEntity(user=""): {"producer_byte_rate": 1000.0},
        QuotaEntity(user="bob", client_id="app/1"): {"request_percentage": 50.0},
        QuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 3.0},
    }
    assert alter(instance, altering({"user": "bob"}, consumer_byte_rate=4.0)) == [0]
    assert config(instance, "/config/users/bob") == {"consumer_byte_rate": "4"}


def test_quotas_survive_a_kill(instance: Instance) -> None:
    assert alter(instance, altering({"user": "u"}, controller_mutation_rate=0.5)) == [0]
    before = shown(instance)
    instance.kill()
    instance.new_memory()
    instance.start()
    instance.workers[0].hello()
    instance.until(lambda: instance.images.version > 0)
    assert shown(instance) == before


def test_a_full_disk_refuses_quotas_and_the_books_stay_right(new_instance: NewInstance) -> None:
    instance = new_instance()
    instance.start()
    instance.start_worker()
    assert alter(instance, altering({"user": "old"}, producer_byte_rate=1.0)) == [0]
    instance.stop()
    instance.start(without_room(instance, more_bytes=100_000))
    instance.workers[0].hello()
    many = [altering({"user": f"{number:0200}"}, producer_byte_rate=2.0) for number in range(400)]
    many.append(altering({"user": ""}, producer_byte_rate=2.0))
    errors = alter(instance, *many)
    assert errors == [int(ErrorCode.KAFKA_STORAGE_ERROR)] * 400 + [int(ErrorCode.INVALID_REQUEST)]
    assert list(shown(instance)) == [QuotaEntity(user="old")]
    assert children(instance, "/config/users") == ["old"]


@pytest.mark.parametrize(
    ("entity", "changes", "word"),
    [
        ({}, {"producer_byte_rate": 1.0}, "empty client quota entity"),
        ({"group": "g"}, {"producer_byte_rate": 1.0}, "Unhandled"),
        ({"user": ""}, {"producer_byte_rate": 1.0}, "Empty user"),
        ({"user": "u", "ip": "127.0.0.1"}, {"producer_byte_rate": 1.0}, "should not be combined"),
        ({"ip": "localhost"}, {"connection_creation_rate": 1.0}, "not a valid IP"),
        ({"ip": None}, {"producer_byte_rate": 1.0}, "Invalid configuration key"),
        ({"user": "u"}, {"connection_creation_rate": 1.0}, "Invalid configuration key"),
        ({"user": "u"}, {"producer_byte_rate": 0.0}, "greater than 0"),
        ({"user": "u"}, {"producer_byte_rate": float("nan")}, "greater than 0"),
        ({"user": "u"}, {"request_percentage": float("inf")}, "finite"),
        ({"user": "u"}, {"producer_byte_rate": 1.5}, "fractional"),
        ({"user": "u"}, {"producer_byte_rate": 1e30}, "too large"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    instance: Instance, entity: Parts, changes: dict[str, float | None], word: str
) -> None:
    answer = instance.answer(instance.ask(AlterQuotas((altering(entity, **changes),))))
    assert isinstance(answer, QuotaOutcomes)
    (outcome,) = answer.outcomes
    assert outcome.error == ErrorCode.INVALID_REQUEST
    assert word in (outcome.message or "")
    assert shown(instance) == {}


@pytest.mark.parametrize("seed", range(3))
def test_what_is_shown_is_what_a_restart_finds(instance: Instance, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        alterations = []
        for _ in range(chance.choice((1, 2, 5))):
            kinds = chance.choice((["user"], ["client-id"], ["user", "client-id"], ["ip"]))
            names = {"ip": ("10.0.0.1", "::1", None)}
            entity = {
                kind: chance.choice(names.get(kind, ("a", "<default>", ".", "a b", None))) for kind in kinds
            }
            key = chance.choice(("producer_byte_rate", "request_percentage"))
            key = "connection_creation_rate" if kinds == ["ip"] else key
            value = chance.choice((None, 5.0, 7.0, 1e19, 0.1, 2.0**63))
            if value in {1e19, 0.1, 2.0**63} and key != "request_percentage":
                value = 2.0**63 if key == "producer_byte_rate" else 2.0**31 - 1
            alterations.append(altering(entity, **{key: value}))
        unique = {tuple(sorted(each.entity.items())): each for each in alterations}
        errors = alter(instance, *unique.values())
        assert not any(errors)
    before = shown(instance)
    instance.kill()
    instance.new_memory()
    instance.start()
    instance.workers[0].hello()
    instance.until(lambda: instance.images.version > 0)
    assert shown(instance) == before
    assert alter(instance, *(altering(parts_of(each), **dict.fromkeys(before[each])) for each in before)) == [
        0
    ] * len(before)
