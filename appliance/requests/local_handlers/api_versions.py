"""ApiVersions 0-4: the table of `protocol.api_versions`, and the features (KIP-584).

| feature | supported | finalized | because |
|---|---|---|---|
| group.version | 0-1 | 1 | consumer groups of KIP-848 are served |
| metadata.version | 7-30 | 30 | the APIs and records are those of Apache Kafka 4.3 |
| transaction.version | 0-2 | 2 | the broker adds partitions to transactions and raises epochs (KIP-890) |

A client that speaks the protocol of `transaction.version` 0 or 1 is served beside: the versions of its requests say so.

A feature of level 0 is not finalized, as with Kafka. Before v4 a feature whose lowest level is 0 is not listed, since
those clients take it for an error.

Left out: the features of eligible leader replicas, share groups, streams groups and KRaft, because the broker does not
have them.
"""

from __future__ import annotations

from appliance.protocol.api_versions import ADVERTISED, ADVERTISED_WITHOUT_TELEMETRY
from appliance.protocol.apis.api_versions import (
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeature,
    SupportedFeature,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView

_RANGES = {
    True: tuple(ApiVersionRange(*row) for row in ADVERTISED),
    False: tuple(ApiVersionRange(*row) for row in ADVERTISED_WITHOUT_TELEMETRY),
}
"""By whether clients may push their metrics."""

FEATURES_EPOCH = 1
"""Grows when what is finalized changes: a client that stays connected goes by the highest that it has seen."""

SUPPORTED_FEATURES = (
    SupportedFeature("group.version", 0, 1),
    SupportedFeature("metadata.version", 7, 30),
    SupportedFeature("transaction.version", 0, 2),
)
FINALIZED_FEATURES = (
    FinalizedFeature("group.version", 1, 1),
    FinalizedFeature("metadata.version", 30, 30),
    FinalizedFeature("transaction.version", 2, 2),
)

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")


def api_versions(request: ApiVersionsRequest, view: LocalView) -> ApiVersionsResponse:
    """Answer, and keep what the client says of its software."""
    response = api_versions_of(request, telemetry=view.settings.metrics.takes_telemetry)
    if not response.error_code:
        view.session.name_software(request.client_software_name, request.client_software_version)
    return response


def api_versions_of(request: ApiVersionsRequest, *, telemetry: bool) -> ApiVersionsResponse:
    """KIP-511: software names are of `[a-zA-Z0-9-.]`, begin and end with a letter or digit, or INVALID_REQUEST.

    Args:
        telemetry: clients may push their metrics.
    """
    for text in (request.client_software_name, request.client_software_version):
        if text and not (_NAME_CHARACTERS.issuperset(text) and text[0] not in "-." and text[-1] not in "-."):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=_RANGES[telemetry],
        supported_features=SUPPORTED_FEATURES,
        finalized_features_epoch=FEATURES_EPOCH,
        finalized_features=FINALIZED_FEATURES,
    )
