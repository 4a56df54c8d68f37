"""Every API that is served has a guard, or looks itself, or is open to all by a rule of Kafka's."""

from __future__ import annotations

from appliance.protocol.api_versions import ApiKey
from appliance.requests.guards.table import GUARDS, IN_THEIR_HANDLERS, OF_OWNERS, OPEN_TO_ALL


def test_every_served_api_is_guarded_once() -> None:
    served = {api for api in ApiKey if api.served}
    assert GUARDS.keys() | IN_THEIR_HANDLERS | OF_OWNERS | OPEN_TO_ALL == served
    assert not GUARDS.keys() & IN_THEIR_HANDLERS
    assert not OPEN_TO_ALL & (GUARDS.keys() | IN_THEIR_HANDLERS)
