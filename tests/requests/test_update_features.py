"""UpdateFeatures: a feature may be set to the level that it has, and to no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.api_versions import ApiVersionsRequest
from appliance.protocol.apis.update_features import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
    UpdateFeaturesRequest,
)
from appliance.protocol.errors import ErrorCode
from tests.requests.serving import Serving, serving

VERSIONS = (0, 1, 2)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as made:
        yield made


def updated(house: Serving, version: int, *updates: FeatureUpdate) -> Any:
    return house.ask(house.session(), ApiKey.UPDATE_FEATURES, version, UpdateFeaturesRequest(updates))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_finalized_level_may_be_set_again(house: Serving, version: int) -> None:
    told = house.ask(house.session(), ApiKey.API_VERSIONS, 4, ApiVersionsRequest("test", "1"))
    updates = tuple(FeatureUpdate(each.name, each.max_version_level) for each in told.finalized_features)
    assert len(updates) == 3
    response = updated(house, version, *updates)
    assert (response.error_code, response.error_message) == (0, None)
    listed = [] if version >= 2 else [(each.feature, 0) for each in updates]
    assert [(each.feature, each.error_code) for each in response.results] == listed


@pytest.mark.parametrize("version", VERSIONS)
def test_every_other_level_is_refused_and_the_levels_stay(house: Serving, version: int) -> None:
    told = house.ask(house.session(), ApiKey.API_VERSIONS, 4, ApiVersionsRequest("test", "1"))
    finalized = {each.name: each.max_version_level for each in told.finalized_features}
    for feature in told.supported_features:
        for level in range(-1, 40):
            if level == finalized.get(feature.name, 0):
                continue
            for kind in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
                update = FeatureUpdate(feature.name, level, kind != UPGRADE, kind)
                response = updated(house, version, update)
                assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION, update
                assert f"Invalid update version {level} for feature {feature.name}." in response.error_message
    after = house.ask(house.session(), ApiKey.API_VERSIONS, 4, ApiVersionsRequest("test", "1"))
    assert after.finalized_features == told.finalized_features


def test_v0_allows_a_downgrade_by_a_flag(house: Serving) -> None:
    refused = updated(house, 0, FeatureUpdate("group.version", 0))
    assert "without setting the upgrade type" in refused.error_message
    allowed = updated(house, 0, FeatureUpdate("group.version", 0, allow_downgrade=True))
    assert "This broker serves version 1 of this feature only." in allowed.error_message


def test_a_feature_that_is_not_known_and_a_type_that_is_not_known_are_refused(house: Serving) -> None:
    for update in (
        FeatureUpdate("nobody.version", 0),
        FeatureUpdate("nobody.version", 1),
        FeatureUpdate("group.version", 1, upgrade_type=9),
    ):
        assert updated(house, 2, update).error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_one_feature_with_an_error_fails_them_all(house: Serving) -> None:
    response = updated(house, 1, FeatureUpdate("group.version", 1), FeatureUpdate("metadata.version", 99))
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert response.results == ()
