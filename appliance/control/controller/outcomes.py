"""What a request is told of each of its topics and resources."""

from __future__ import annotations

from uuid import UUID

from appliance.channels.control_channel import (
    AclOutcome,
    AclOutcomes,
    ConfigOutcome,
    QuotaOutcome,
    QuotaOutcomes,
    ScramOutcome,
    ScramOutcomes,
    TokenOutcome,
    TopicOutcome,
)
from appliance.control.controller.topic_commands import TopicPlan
from appliance.control.store.errors import ChangeTooLarge
from appliance.errors import CorruptFile, RejectedRequest, StorageFault
from appliance.protocol.errors import ErrorCode, code_for, message_for


def refused(name: str, refusal: RejectedRequest, *, topic_id: UUID | None = None) -> TopicOutcome:
    """A topic that was not touched."""
    return TopicOutcome(name, int(code_for(refusal)), message_for(refusal), topic_id)


def blamed(fault: StorageFault, outcome: TopicOutcome) -> TopicOutcome:
    """The outcome, unless it was refused already, after the store failed."""
    if outcome.error:
        return outcome
    return TopicOutcome(outcome.name, _code_of(fault), message_for(fault))


def blamed_configs(fault: StorageFault, outcome: ConfigOutcome) -> ConfigOutcome:
    """As `blamed`, for settings."""
    if outcome.error:
        return outcome
    return ConfigOutcome(outcome.type, outcome.name, _code_of(fault), message_for(fault))


def blamed_of_image(
    fault: StorageFault | CorruptFile, outcomes: AclOutcomes | QuotaOutcomes | ScramOutcomes | TokenOutcome
) -> AclOutcomes | QuotaOutcomes | ScramOutcomes | TokenOutcome:
    """As `blamed`, for rules, quotas, credentials and tokens."""
    if isinstance(outcomes, TokenOutcome):
        return outcomes if outcomes.error else TokenOutcome(_code_of(fault))
    if isinstance(outcomes, QuotaOutcomes):
        return blamed_quotas(fault, outcomes)
    if isinstance(outcomes, ScramOutcomes):
        code, why = _code_of(fault), message_for(fault)
        return ScramOutcomes(
            tuple(each if each.error else ScramOutcome(each.user, code, why) for each in outcomes.outcomes)
        )

    def blamed_one(outcome: AclOutcome) -> AclOutcome:
        return outcome if outcome.error else AclOutcome(_code_of(fault), message_for(fault))

    return AclOutcomes(
        tuple(map(blamed_one, outcomes.created)),
        tuple(map(blamed_one, outcomes.deleted)),
    )


def blamed_quotas(fault: StorageFault | CorruptFile, outcomes: QuotaOutcomes) -> QuotaOutcomes:
    """As `blamed`, for quotas."""
    return QuotaOutcomes(
        tuple(
            outcome if outcome.error else QuotaOutcome(_code_of(fault), message_for(fault))
            for outcome in outcomes.outcomes
        )
    )


def _code_of(fault: StorageFault | CorruptFile) -> int:
    """Retriable, unless asking again cannot help."""
    return int(ErrorCode.INVALID_REQUEST if isinstance(fault, ChangeTooLarge) else code_for(fault))


def planned(plan: TopicPlan, *, validate_only: bool) -> TopicOutcome:
    """A topic that is, or would be, as planned."""
    return TopicOutcome(
        name=plan.name,
        topic_id=None if validate_only else plan.topic_id,
        partitions=plan.partition_count,
        replication_factor=plan.replication_factor,
        configs=dict(plan.configs),
    )
