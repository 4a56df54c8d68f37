"""UpdateFeatures (57), versions 0-2: finalize other levels of features (KIP-584).

v1 replaces `allow_downgrade` by a type of upgrade and adds `validate_only`. v2 has one error for all features
(KIP-1022).
"""

from __future__ import annotations

import msgspec

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3


class FeatureUpdate(msgspec.Struct, frozen=True):
    """`allow_downgrade` is v0's way to say SAFE_DOWNGRADE."""

    feature: str
    max_version_level: int
    allow_downgrade: bool = False
    upgrade_type: int = UPGRADE


class UpdateFeaturesRequest(msgspec.Struct, frozen=True):
    feature_updates: tuple[FeatureUpdate, ...]
    timeout_ms: int = 60_000
    validate_only: bool = False


class UpdatableFeatureResult(msgspec.Struct, frozen=True):
    feature: str
    error_code: int = 0
    error_message: str | None = None


class UpdateFeaturesResponse(msgspec.Struct, frozen=True):
    """`results` are not in v2."""

    error_code: int = 0
    error_message: str | None = None
    results: tuple[UpdatableFeatureResult, ...] = ()
    throttle_time_ms: int = 0
