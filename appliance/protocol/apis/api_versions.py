"""ApiVersions (18), versions 0-4: what the broker speaks.

v3 adds the client's software and the features; v4 allows a feature's lowest level to be 0. A version that
we do not know is answered by `messages.encode_unsupported_api_versions`.
"""

from __future__ import annotations

import msgspec
import msgspec.structs

LEVEL_0_VERSION = 4


class ApiVersionsRequest(msgspec.Struct, frozen=True):
    client_software_name: str = ""
    client_software_version: str = ""


class ApiVersionRange(msgspec.Struct, frozen=True):
    api_key: int
    min_version: int
    max_version: int


class SupportedFeature(msgspec.Struct, frozen=True):
    name: str
    min_version: int
    max_version: int


class FinalizedFeature(msgspec.Struct, frozen=True):
    name: str
    max_version_level: int
    min_version_level: int


class ApiVersionsResponse(msgspec.Struct, frozen=True):
    """`finalized_features` mean something only with an epoch of 0 or more."""

    error_code: int = 0
    api_keys: tuple[ApiVersionRange, ...] = ()
    throttle_time_ms: int = 0
    supported_features: tuple[SupportedFeature, ...] = ()
    finalized_features_epoch: int = -1
    finalized_features: tuple[FinalizedFeature, ...] = ()
    zk_migration_ready: bool = False

    def of_version(self, version: int) -> ApiVersionsResponse:
        """Without what the version cannot say: before v4, features whose lowest level is 0 (KIP-1022)."""
        if version >= LEVEL_0_VERSION:
            return self
        sayable = tuple(each for each in self.supported_features if each.min_version > 0)
        return msgspec.structs.replace(self, supported_features=sayable)
