"""ElectLeaders 0-2: the controller decides, partition by partition; answers when the leaders lead."""

from __future__ import annotations

from appliance.channels.control_channel import ElectLeaders, PartitionOutcome
from appliance.protocol.apis.elect_leaders import (
    PREFERRED,
    UNCLEAN,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.partition_answers import (
    TIMEOUT_MS_MAX,
    by_topic,
    outcomes_of,
    sentence,
)
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Ask, Steps, chunks, in_pieces


def elect_leaders(request: ElectLeadersRequest, _view: LocalView) -> Steps[ElectLeadersResponse]:
    """One question for every ASKED_AT_ONCE partitions; a type of election that nobody knows is refused."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        return ElectLeadersResponse((), error_code=int(ErrorCode.INVALID_REQUEST))
    unclean = request.election_type == UNCLEAN
    timeout_ms = max(1, min(request.timeout_ms, TIMEOUT_MS_MAX))
    outcomes: list[PartitionOutcome] = []
    error = 0
    if request.topic_partitions is None:
        answer = yield Ask(ElectLeaders(None, unclean=unclean), timeout_ms)
        outcomes += outcomes_of(answer, ())
        error = int(ErrorCode.REQUEST_TIMED_OUT) if answer is None else 0
    else:
        asked: dict[tuple[str, int], None] = {}
        for each in request.topic_partitions:
            asked.update(dict.fromkeys((each.topic, number) for number in each.partitions))
            yield None
        for part in chunks(list(asked)):
            answer = yield Ask(ElectLeaders(tuple(part), unclean=unclean), timeout_ms)
            outcomes += outcomes_of(answer, part)
    results = yield from in_pieces(_result, by_topic(outcomes).items())
    return ElectLeadersResponse(results, error_code=error)


def _result(of_topic: tuple[str, list[PartitionOutcome]]) -> ReplicaElectionResult:
    topic, outcomes = of_topic
    results = tuple(PartitionResult(each.partition, each.error, sentence(each)) for each in outcomes)
    return ReplicaElectionResult(topic, results)
