"""What the three APIs of ACLs have in common: SECURITY_DISABLED without an authorizer, and questions to the controller.

Source: Kafka's `AclApis.scala` and `ControllerApis.scala`, release 4.3.
"""

from __future__ import annotations

from typing import Final

from appliance.channels.control_channel import AclOutcome, AclOutcomes, AlterAcls
from appliance.protocol.errors import ErrorCode
from appliance.requests.steps import Ask, Steps

NO_AUTHORIZER: Final = "No Authorizer is configured."
TIMEOUT_MS: Final = 60_000


def altered(question: AlterAcls) -> Steps[AclOutcomes]:
    """What became of each rule and each filter. A controller that does not answer may have made the change."""
    answer = yield Ask(question, TIMEOUT_MS)
    if isinstance(answer, AclOutcomes):
        return answer
    late = AclOutcome(int(ErrorCode.REQUEST_TIMED_OUT), ErrorCode.REQUEST_TIMED_OUT.message)
    return AclOutcomes((late,) * len(question.created), (late,) * len(question.deleted))
