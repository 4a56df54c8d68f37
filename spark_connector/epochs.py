"""Leader epochs of a copy: what was written under which, and whether two copies hold the same records.

Two copies may differ only behind the offset at which their epochs part ways (KIP-101). So what was planned from one
copy, up to an offset that was written under epoch e, is the same in another one in which e ends no earlier.
"""

from __future__ import annotations

from pathlib import Path

from appliance.errors import ApplianceError
from appliance.log.leader_epochs import UNDEFINED_EPOCH, LeaderEpochs
from spark_connector.directory import PartitionView


def epoch_of(view: PartitionView, offset: int) -> int:
    """The leader epoch under which `offset` was, or would be, written; -1 where that is not known."""
    epochs = _epochs(view)
    return UNDEFINED_EPOCH if epochs is None else epochs.epoch_of(offset)


def epoch_end(view: PartitionView, epoch: int) -> int:
    """Where the leader epoch `epoch` ended: what a reader has seen of it beyond that was cut. -1: not known."""
    epochs = _epochs(view)
    if epochs is None:
        return -1
    return epochs.end_offset(epoch, log_end_offset=max(view.log_end_offset, view.high_watermark))[1]


def holds(view: PartitionView, end: int, *, epoch: int) -> bool:
    """Whether a copy surely has all records below `end`, the last of which was written under `epoch`."""
    return epoch != UNDEFINED_EPOCH and min(epoch_end(view, epoch), view.high_watermark) >= end


def _epochs(view: PartitionView) -> LeaderEpochs | None:
    seen = view.seen
    if seen is not None and seen.epochs is not None:
        return seen.epochs
    try:
        found = LeaderEpochs.load(Path(view.directory))
    except ApplianceError:
        return None
    if seen is not None and seen.listing.holds(view.directory):
        seen.epochs = found
    return found
