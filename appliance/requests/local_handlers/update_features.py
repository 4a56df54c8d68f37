"""UpdateFeatures 0-2: whether each feature could have the level that is asked for. No level changes here.

| asked for | answer |
|---|---|
| the level that the feature has | no error |
| a level outside the supported range, or a feature that is not known | INVALID_UPDATE_VERSION, as Kafka |
| a lower level, by an upgrade; a higher one, by a downgrade | INVALID_UPDATE_VERSION, as Kafka |
| another level that is supported | INVALID_UPDATE_VERSION: the broker serves one level of each feature |

Where we differ: Apache Kafka can lower `group.version`, `transaction.version` and, within limits, `metadata.version`.
Here a feature has the level of what the broker serves (`api_versions`), so there is nothing to agree on.

The first feature with an error fails them all. Up to v1 the features are listed if none failed.
Source: `FeatureControlManager.updateFeatures` (KIP-584, KIP-1022).
"""

from __future__ import annotations

from typing import Final

from appliance.protocol.apis.update_features import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.api_versions import FINALIZED_FEATURES, SUPPORTED_FEATURES
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps, in_pieces

_SUPPORTED: Final = {each.name: (each.min_version, each.max_version) for each in SUPPORTED_FEATURES}
_LEVELS: Final = {each.name: each.max_version_level for each in FINALIZED_FEATURES}
NO_ERROR: Final = "NONE"
"""The message beside a feature without an error, as Apache Kafka sends it: the name of the code."""
_UPGRADE_TYPES: Final = (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE)


def update_features(request: UpdateFeaturesRequest, _view: LocalView) -> Steps[UpdateFeaturesResponse]:
    """Answer from the tables of `api_versions`."""
    faults = yield from in_pieces(_fault, request.feature_updates)
    fault = next((each for each in faults if each is not None), None)
    if fault is not None:
        return UpdateFeaturesResponse(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"The update failed for all features since the following feature had an error: {fault}",
        )
    results = yield from in_pieces(
        lambda each: UpdatableFeatureResult(each.feature, error_message=NO_ERROR), request.feature_updates
    )
    return UpdateFeaturesResponse(results=results)


def _fault(update: FeatureUpdate) -> str | None:
    """Return why a feature cannot have the level, None if it has it already."""
    why = _why_not(update)
    if why is None:
        return None
    return f"Invalid update version {update.max_version_level} for feature {update.feature}. {why}"


def _why_not(update: FeatureUpdate) -> str | None:
    kind = SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type
    if kind not in _UPGRADE_TYPES:
        return "The controller does not support the given upgrade type."
    wanted = update.max_version_level
    if wanted < 0:
        return "A feature version cannot be less than 0."
    lowest, highest = _SUPPORTED.get(update.feature, (0, 0))
    if not wanted and update.feature not in _SUPPORTED:
        return f"Feature {update.feature} not found."
    if not lowest <= wanted <= highest:
        if not highest:
            return "This broker does not support this feature."
        return f"This broker only supports versions {lowest}-{highest}"
    level = _LEVELS.get(update.feature, 0)
    if wanted < level and kind == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or"
            " unsafe downgrade."
        )
    if wanted > level and kind != UPGRADE:
        return "Can't downgrade to a newer version."
    return None if wanted == level else f"This broker serves version {level} of this feature only."
