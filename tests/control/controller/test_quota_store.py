"""Quotas as a controller that takes over reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.clock import SystemClock
from appliance.cluster import QuotaEntity
from appliance.control.controller.entity_configs import PendingTree, alter_configs
from appliance.control.controller.quota_store import entity_path, load_quotas
from appliance.control.controller.takeover import plant
from appliance.control.store.embedded_store import EmbeddedStore
from appliance.control.store.metadata_store import Operation


def test_users_without_client_ids_cost_no_question_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EmbeddedStore(tmp_path, SystemClock())
    plant(store)
    operations: list[Operation] = []
    tree = PendingTree(store, operations)
    for number in range(100):
        alter_configs(tree, entity_path(QuotaEntity(user=f"u{number}")), {"SCRAM-SHA-256": "its credential"})
    wanted = {
        QuotaEntity(user="u7", client_id="c"): {"producer_byte_rate": 5.0},
        QuotaEntity(user="", client_id=""): {"producer_byte_rate": 6.0},
        QuotaEntity(user="u8"): {"producer_byte_rate": 7.0},
        QuotaEntity(client_id="c"): {"producer_byte_rate": 8.0},
        QuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 9.0},
    }
    for entity, values in wanted.items():
        alter_configs(tree, entity_path(entity), {key: str(value) for key, value in values.items()})
    store.multi(operations)
    asked: list[str] = []
    exists = EmbeddedStore.exists

    def counted(self: EmbeddedStore, path: str, *, watch: bool = False) -> object:
        asked.append(path)
        return exists(self, path, watch=watch)

    monkeypatch.setattr(EmbeddedStore, "exists", counted)
    assert load_quotas(store) == wanted
    assert len(asked) == 2
    store.close()
