"""SCRAM credentials through a real controller process: changed, kept in Kafka's form, seen in the image."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from appliance.channels.control_channel import AlterScram, ScramOutcomes
from appliance.cluster import ScramCredential
from appliance.config.sections.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from appliance.control.store.metadata_store import Create, MetadataStore, SetData
from appliance.control.store.znode_tree import user_config_path
from appliance.protocol.errors import ErrorCode
from appliance.sasl.scram_credential import credential_text, new_credential
from tests.control.controller.instance import Instance
from tests.control.controller.test_damage import without_room


def alter(
    instance: Instance, *made: ScramCredential, deleted: tuple[tuple[str, str], ...] = ()
) -> list[tuple[str, int]]:
    answer = instance.answer(instance.ask(AlterScram(deleted, made)))
    assert isinstance(answer, ScramOutcomes)
    return [(each.user, each.error) for each in answer.outcomes]


ALICE = new_credential("alice", SCRAM_SHA_256, "x")
ALICE_512 = new_credential("alice", SCRAM_SHA_512, "x")
BOB = new_credential("bob/~ ü", SCRAM_SHA_256, "y")


@contextmanager
def store_of(instance: Instance) -> Iterator[MetadataStore]:
    """The store, while the controller does not run."""
    store = instance.open_store()
    try:
        yield store
    finally:
        store.close()


def test_an_answered_change_is_in_the_image_and_in_the_store_in_kafkas_form(instance: Instance) -> None:
    assert alter(instance, ALICE, BOB) == [("alice", 0), ("bob/~ ü", 0)]
    assert instance.image.scram == tuple(sorted((ALICE, BOB)))
    assert alter(instance, ALICE_512) == [("alice", 0)]
    assert instance.image.scram == tuple(sorted((ALICE, ALICE_512, BOB)))
    instance.stop()
    with store_of(instance) as store:
        node = store.get("/config/users/alice")
        assert json.loads(node.data) == {
            "version": 1,
            "config": {
                "SCRAM-SHA-256": credential_text(ALICE),
                "SCRAM-SHA-512": credential_text(ALICE_512),
            },
        }
        assert store.exists("/config/users/bob%2F%7E%20%C3%BC")
    instance.start()
    instance.start_worker()
    assert alter(instance, deleted=(("alice", SCRAM_SHA_256),)) == [("alice", 0)]
    assert instance.image.scram == tuple(sorted((ALICE_512, BOB)))


def test_what_does_not_exist_cannot_be_deleted_and_the_rest_is_done(instance: Instance) -> None:
    gone = (("alice", SCRAM_SHA_512), ("nobody", SCRAM_SHA_256))
    assert alter(instance, ALICE) == [("alice", 0)]
    assert alter(instance, BOB, deleted=gone) == [
        ("alice", ErrorCode.RESOURCE_NOT_FOUND),
        ("nobody", ErrorCode.RESOURCE_NOT_FOUND),
        ("bob/~ ü", 0),
    ]
    assert instance.image.scram == tuple(sorted((ALICE, BOB)))


def test_a_full_disk_changes_nothing(instance: Instance) -> None:
    assert alter(instance, ALICE) == [("alice", 0)]
    instance.stop()
    instance.start(without_room(instance, more_bytes=200_000))
    instance.start_worker()
    many = [new_credential(f"user-{number}", SCRAM_SHA_256, "x") for number in range(500)]
    refused = alter(instance, *many, ALICE_512)
    assert {error for _, error in refused} == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert [*instance.image.scram] == [ALICE]
    resource.prlimit(instance.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert alter(instance, ALICE_512) == [("alice", 0)]
    assert [*instance.image.scram] == [ALICE, ALICE_512]


def test_the_next_controller_and_an_adopted_tree_know_the_users(instance: Instance) -> None:
    assert alter(instance, ALICE) == [("alice", 0)]
    instance.stop()
    bad = json.dumps({"version": 1, "config": {"SCRAM-SHA-256": "salt=AAAA"}}).encode()
    kafkas = json.dumps(
        {
            "version": 1,
            "config": {"SCRAM-SHA-512": credential_text(ALICE_512), "producer_byte_rate": "1024"},
        }
    ).encode()
    with store_of(instance) as store:
        store.multi(
            [
                SetData(user_config_path("alice"), kafkas),
                Create(user_config_path("broken"), bad),
                Create("/config/users/<default>", b'{"version":1,"config":{"consumer_byte_rate":"1"}}'),
            ]
        )
    instance.start()
    instance.start_worker()
    instance.until(lambda: instance.images.version > 1)
    assert instance.image.scram == (ALICE_512,)
    assert alter(instance, ALICE, new_credential("broken", SCRAM_SHA_256, "z")) == [
        ("alice", 0),
        ("broken", 0),
    ]
    instance.stop()
    with store_of(instance) as store:
        config = json.loads(store.get(user_config_path("alice")).data)["config"]
    assert config["producer_byte_rate"] == "1024", "quotas in the same node stay"
    assert set(config) == {"SCRAM-SHA-256", "SCRAM-SHA-512", "producer_byte_rate"}
