"""ApiVersions 0-4: the table of `protocol.api_versions`, and no finalized features.

Not finalizing `transaction.version` makes every client keep to the first transaction protocol, which is all there
will be until the transactions issue; `group.version` follows with the groups issue.
"""

from __future__ import annotations

from appliance.netproc.local_handlers.view import LocalView
from appliance.protocol.api_versions import ADVERTISED
from appliance.protocol.apis.api_versions import ApiVersionRange, ApiVersionsRequest, ApiVersionsResponse
from appliance.protocol.errors import ErrorCode

_RANGES = tuple(ApiVersionRange(*row) for row in ADVERTISED)
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")


def api_versions(request: ApiVersionsRequest, _view: LocalView) -> ApiVersionsResponse:
    """KIP-511: software names are of `[a-zA-Z0-9-.]`, begin and end with a letter or digit, or INVALID_REQUEST."""
    for text in (request.client_software_name, request.client_software_version):
        if text and not (_NAME_CHARACTERS.issuperset(text) and text[0] not in "-." and text[-1] not in "-."):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(api_keys=_RANGES)
