"""ElectLeaders 0-2: the controller decides, partition by partition; answers when the leaders lead."""

from __future__ import annotations

from appliance.channels.control_channel import Body, ElectLeaders
from appliance.netproc.local_handlers.partition_answers import TIMEOUT_MS_MAX, by_topic, outcomes_of, sentence
from appliance.netproc.local_handlers.view import AskController, LocalView
from appliance.protocol.apis.elect_leaders import (
    PREFERRED,
    UNCLEAN,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from appliance.protocol.errors import ErrorCode


def elect_leaders(request: ElectLeadersRequest, _view: LocalView) -> AskController | ElectLeadersResponse:
    """One question for the whole request; a type of election that nobody knows is refused."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        return ElectLeadersResponse((), error_code=int(ErrorCode.INVALID_REQUEST))
    asked: tuple[tuple[str, int], ...] | None = None
    if request.topic_partitions is not None:
        asked = tuple(
            dict.fromkeys(
                (each.topic, number) for each in request.topic_partitions for number in each.partitions
            )
        )
        if not asked:
            return ElectLeadersResponse(())

    def then(answers: tuple[Body | None, ...]) -> ElectLeadersResponse:
        late = answers[0] is None and asked is None
        return ElectLeadersResponse(
            tuple(
                ReplicaElectionResult(
                    topic,
                    tuple(PartitionResult(each.partition, each.error, sentence(each)) for each in outcomes),
                )
                for topic, outcomes in by_topic(outcomes_of(answers[0], asked or ())).items()
            ),
            error_code=int(ErrorCode.REQUEST_TIMED_OUT) if late else 0,
        )

    question = ElectLeaders(asked, unclean=request.election_type == UNCLEAN)
    return AskController((question,), then, max(1, min(request.timeout_ms, TIMEOUT_MS_MAX)))
