"""The response of WriteTxnMarkers, out of what became of each marker in each partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from appliance.protocol.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)


def markers_response(
    markers: Sequence[WritableTxnMarker], outcomes: Iterable[tuple[int, str, int, int]]
) -> WriteTxnMarkersResponse:
    """Return the response to a request with these markers.

    Args:
        outcomes: (number of the marker in the request, topic, partition, error), in any order.
    """
    results: list[dict[str, list[WritableTxnMarkerPartitionResult]]] = [{} for _ in markers]
    for number, topic, partition, error in outcomes:
        results[number].setdefault(topic, []).append(WritableTxnMarkerPartitionResult(partition, error))
    return WriteTxnMarkersResponse(
        tuple(
            WritableTxnMarkerResult(
                marker.producer_id,
                tuple(WritableTxnMarkerTopicResult(topic, tuple(each)) for topic, each in of.items()),
            )
            for marker, of in zip(markers, results, strict=True)
        )
    )
