"""What every metadata store promises, whoever keeps it. Written against two sessions with one store."""

from __future__ import annotations

import pytest

from appliance.control.store.errors import (
    BadVersion,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    StoreRefusal,
)
from appliance.control.store.metadata_store import (
    Check,
    Create,
    Delete,
    EventKind,
    MetadataStore,
    Operation,
    SetData,
    WatchEvent,
)
from tests.control.store.conftest import OpenStore, wait_for_events


def test_created_node_is_read_back_by_another_session(store: MetadataStore, open_store: OpenStore) -> None:
    store.create("/a", b"\x00bytes\xff")
    node = open_store().get("/a")
    assert (node.path, node.data, node.version) == ("/a", b"\x00bytes\xff", 0)
    assert node.stat.data_length_bytes == 7
    assert node.stat.ephemeral_owner == 0


def test_node_needs_its_parent(store: MetadataStore) -> None:
    with pytest.raises(NoNode):
        store.create("/a/b")
    assert store.exists("/a/b") is None


def test_node_is_not_created_twice(store: MetadataStore) -> None:
    store.create("/a", b"first")
    with pytest.raises(NodeExists) as refused:
        store.create("/a", b"second")
    assert refused.value.path == "/a"
    assert store.get("/a").data == b"first"


def test_missing_node_is_not_read_set_or_deleted(store: MetadataStore) -> None:
    for attempt in (
        lambda: store.get("/nothing"),
        lambda: store.set("/nothing", b""),
        lambda: store.delete("/nothing"),
        lambda: store.children("/nothing"),
    ):
        with pytest.raises(NoNode):
            attempt()


def test_version_grows_with_each_set_and_guards_the_next(store: MetadataStore) -> None:
    store.create("/a", b"0")
    assert store.set("/a", b"1") == 1
    assert store.set("/a", b"2", version=1) == 2
    with pytest.raises(BadVersion):
        store.set("/a", b"3", version=1)
    with pytest.raises(BadVersion):
        store.delete("/a", version=1)
    assert store.get("/a").data == b"2"
    store.delete("/a", version=2)
    assert store.exists("/a") is None


def test_recreated_node_starts_at_version_zero_and_is_a_newer_one(store: MetadataStore) -> None:
    store.create("/a")
    store.set("/a", b"x")
    before = store.get("/a").stat
    store.delete("/a")
    store.create("/a")
    after = store.get("/a").stat
    assert after.version == 0
    assert after.created_zxid > before.modified_zxid


def test_children_are_names_in_order_and_counted(store: MetadataStore) -> None:
    store.create("/a")
    for name in ("c", "a-b", "a.b", "b"):
        store.create(f"/a/{name}")
    store.create("/a/b/deep")
    store.create("/ab")
    assert store.children("/a") == ["a-b", "a.b", "b", "c"]
    stat = store.exists("/a")
    assert stat is not None
    assert stat.child_count == 4
    store.delete("/a/c")
    assert store.children("/a") == ["a-b", "a.b", "b"]
    assert store.children("/a/c".replace("c", "a.b")) == []


def test_root_exists_and_lists_its_children_without_itself(store: MetadataStore) -> None:
    store.create("/one")
    assert "one" in store.children("/")
    assert "" not in store.children("/")
    with pytest.raises(NodeExists):
        store.create("/")


def test_node_with_children_is_not_deleted(store: MetadataStore) -> None:
    store.ensure_path("/a/b")
    with pytest.raises(NotEmpty):
        store.delete("/a")
    store.delete("/a/b")
    store.delete("/a")
    assert store.exists("/a") is None


def test_ensure_path_keeps_what_is_there(store: MetadataStore) -> None:
    store.create("/a", b"kept")
    store.ensure_path("/a/b/c")
    store.ensure_path("/a/b/c")
    assert store.get("/a").data == b"kept"
    assert store.get("/a/b/c").data == b""


def test_get_many_returns_those_that_exist(store: MetadataStore) -> None:
    store.create("/t")
    store.multi([Create(f"/t/{number}", b"%d" % number) for number in range(1200)])
    found = store.get_many([f"/t/{number}" for number in range(1300)] + ["/t/it's"])
    assert len(found) == 1200
    assert all(found[f"/t/{number}"].data == b"%d" % number for number in range(1200))


def test_multi_does_everything_in_order(store: MetadataStore) -> None:
    store.create("/gone")
    store.multi(
        [
            Create("/a", b"0"),
            Create("/a/b", b""),
            SetData("/a", b"1", version=0),
            Check("/a", version=1),
            Delete("/gone"),
        ]
    )
    assert store.get("/a").data == b"1"
    assert store.children("/a") == ["b"]
    assert store.exists("/gone") is None


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (Check("/fence", version=7), BadVersion),
        (Create("/fence"), NodeExists),
        (Create("/no/parent"), NoNode),
        (SetData("/none", b""), NoNode),
        (Delete("/fence", version=3), BadVersion),
        (Delete("/"), NotEmpty),
    ],
)
def test_multi_does_nothing_when_its_last_operation_is_refused(
    store: MetadataStore, last: Operation, error: type[StoreRefusal]
) -> None:
    store.create("/fence", b"old")
    with pytest.raises(error) as refused:
        store.multi([Create("/new"), SetData("/fence", b"new"), Delete("/new"), last])
    assert refused.value.index == 3
    assert store.exists("/new") is None
    node = store.get("/fence")
    assert (node.data, node.version) == (b"old", 0)


def test_ephemeral_node_is_there_for_others_until_its_session_closes(
    store: MetadataStore, open_store: OpenStore
) -> None:
    other = open_store()
    other.create("/mine", b"x", ephemeral=True)
    stat = store.exists("/mine")
    assert stat is not None
    assert stat.ephemeral_owner == other.session_id
    with pytest.raises(NodeExists):
        store.create("/mine", ephemeral=True)
    other.close()
    assert store.exists("/mine") is None
    store.create("/mine", ephemeral=True)


def test_ephemeral_node_bears_no_children(store: MetadataStore) -> None:
    store.create("/mine", ephemeral=True)
    with pytest.raises(NoChildrenForEphemerals):
        store.create("/mine/child")


def test_persistent_node_outlives_its_session(store: MetadataStore, open_store: OpenStore) -> None:
    other = open_store()
    other.create("/kept", b"x")
    other.close()
    assert store.get("/kept").data == b"x"


def test_watch_tells_of_anothers_change_once(store: MetadataStore, open_store: OpenStore) -> None:
    other = open_store()
    other.create("/a", b"0")
    store.get("/a", watch=True)
    other.set("/a", b"1")
    assert wait_for_events(store) == [WatchEvent(EventKind.CHANGED, "/a")]
    other.set("/a", b"2")
    assert wait_for_events(store, timeout_ms=200) == []


def test_watch_of_a_missing_node_tells_of_its_creation(store: MetadataStore, open_store: OpenStore) -> None:
    assert store.exists("/later", watch=True) is None
    open_store().create("/later")
    assert wait_for_events(store) == [WatchEvent(EventKind.CREATED, "/later")]


def test_watch_tells_of_deletion(store: MetadataStore, open_store: OpenStore) -> None:
    store.create("/a")
    store.exists("/a", watch=True)
    open_store().delete("/a")
    assert wait_for_events(store) == [WatchEvent(EventKind.DELETED, "/a")]


def test_watch_tells_that_an_ephemeral_node_went_with_its_session(
    store: MetadataStore, open_store: OpenStore
) -> None:
    other = open_store()
    other.create("/controller", ephemeral=True)
    store.exists("/controller", watch=True)
    other.close()
    assert wait_for_events(store) == [WatchEvent(EventKind.DELETED, "/controller")]


def test_watch_of_children_tells_of_comers_but_not_of_their_data(
    store: MetadataStore, open_store: OpenStore
) -> None:
    other = open_store()
    other.ensure_path("/a/old")
    store.children("/a", watch=True)
    other.set("/a/old", b"x")
    other.create("/a/old/grandchild")
    assert wait_for_events(store, timeout_ms=200) == []
    other.create("/a/new")
    assert wait_for_events(store) == [WatchEvent(EventKind.CHILDREN, "/a")]


def test_watch_tells_of_changes_of_its_own_session(store: MetadataStore) -> None:
    store.create("/a")
    store.get("/a", watch=True)
    store.set("/a", b"1")
    assert wait_for_events(store) == [WatchEvent(EventKind.CHANGED, "/a")]


def test_read_that_fails_leaves_no_watch(store: MetadataStore) -> None:
    with pytest.raises(NoNode):
        store.get("/a", watch=True)
    store.create("/a")
    assert wait_for_events(store, timeout_ms=200) == []


def test_refused_change_fires_no_watch(store: MetadataStore, open_store: OpenStore) -> None:
    store.create("/a", b"0")
    store.get("/a", watch=True)
    with pytest.raises(NodeExists):
        open_store().multi([SetData("/a", b"1"), Create("/a")])
    assert wait_for_events(store, timeout_ms=200) == []


def test_closed_session_is_refused(store: MetadataStore) -> None:
    store.close()
    with pytest.raises(SessionExpired):
        store.get("/")
    with pytest.raises(SessionExpired):
        store.create("/a")


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/a/../b", "/."])
def test_what_is_no_path_is_a_mistake_of_the_caller(store: MetadataStore, path: str) -> None:
    with pytest.raises(ValueError, match="no path"):
        store.create(path)
