"""One partition of one Fetch: what is wanted of it, how far it may be read, and where the records of the answer lie.

    begin             wanted, route           or the error that there is nobody to ask
    look              offsets, files_version  from the partition table
    owner or cursor   segment, position, …    where the records lie: `answered`, or `fetch.FetchHandler` by a cursor
    response          length_bytes, held      cut to what there is room for, and its segment open (`fetch_responder`)

A fetch that was woken looks anew, and no length that an earlier look has found counts any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.channels.request_channel import (
    ANSWER_EPOCH,
    ANSWER_LOG_START,
    EPOCH_END_OFFSET,
    ERROR,
    FETCH_DIRECTORY,
    FETCHED_BYTES,
    FETCHED_HIGH_WATERMARK,
    FETCHED_LAST_STABLE_OFFSET,
    FETCHED_POSITION,
    FETCHED_SEGMENT,
    FIRST_BATCH_BYTES,
    FLAGS,
    OP,
    Op,
    ResponseFlag,
)
from appliance.channels.roles import Role
from appliance.protocol.fetch_response import AbortedTransaction, DivergingEpoch, FetchedPartition
from appliance.requests.fetch_session import SessionPartition
from appliance.requests.segment_files import SegmentFile
from appliance.requests.topic_routes import PartitionRoute
from appliance.requests.worker_lines import Answer

_EPOCH_END: Final = int(Op.EPOCH_END)
_ABORTED: Final = int(ResponseFlag.ABORTED)
_OLDER_SEGMENT: Final = int(ResponseFlag.OLDER_SEGMENT)


class FetchItem:
    """Offsets are -1 and lengths 0 as long as nobody has said more.

    `asks_owner`: its owner has to say, or has said, where the records lie; no cursor led there.
    `asked`: the worker whose answer is still to come.
    `end_offset`: no record that is sent has it or a higher one; -1 where that is not known.
    `files_version`: from before the owner was asked; `held` is the segment under that version.
    `directory`: of the slot's log directories the one that has the segment, by its place among them.
    `first_batch_bytes`: less than these are never sent.
    `following_bytes`: readable behind the records, and likely to be asked for next.
    `on_older_segment`: what may be read goes on in a later segment than the one the records lie in.
    """

    __slots__ = (
        "aborted",
        "asked",
        "asks_owner",
        "directory",
        "diverging",
        "end_offset",
        "error",
        "files_version",
        "first_batch_bytes",
        "following_bytes",
        "has_aborted",
        "held",
        "high_watermark",
        "last_stable_offset",
        "length_bytes",
        "log_start",
        "on_older_segment",
        "position",
        "route",
        "segment",
        "wanted",
    )

    def __init__(self, wanted: SessionPartition, route: PartitionRoute | int) -> None:
        """`route`: the error instead, where there is none."""
        self.wanted = wanted
        self.route = None if isinstance(route, int) else route
        self.error = route if isinstance(route, int) else 0
        self.asked: Role | None = None
        self.asks_owner = self.has_aborted = self.on_older_segment = False
        self.diverging: DivergingEpoch | None = None
        self.aborted: Sequence[AbortedTransaction] = ()
        self.high_watermark = self.last_stable_offset = self.log_start = self.end_offset = -1
        self.files_version = 0
        self.directory = self.segment = self.position = self.length_bytes = self.first_batch_bytes = 0
        self.following_bytes = 0
        self.held: SegmentFile | None = None

    def answered(self, answer: Answer) -> None:
        """The owner says where the records lie, or where the reader's history parts from the log."""
        self.asked = None
        self.error = answer[ERROR]
        self.high_watermark = answer[FETCHED_HIGH_WATERMARK]
        self.log_start = answer[ANSWER_LOG_START]
        self.last_stable_offset = answer[FETCHED_LAST_STABLE_OFFSET]
        if answer[OP] == _EPOCH_END:
            self.diverging = DivergingEpoch(answer[ANSWER_EPOCH], answer[EPOCH_END_OFFSET])
        elif not self.error:
            self.segment = answer[FETCHED_SEGMENT]
            self.directory = answer[FLAGS] & FETCH_DIRECTORY
            self.position = answer[FETCHED_POSITION]
            self.length_bytes = answer[FETCHED_BYTES]
            self.first_batch_bytes = answer[FIRST_BATCH_BYTES]
            self.end_offset = -1
            self.has_aborted = bool(answer[FLAGS] & _ABORTED)
            self.on_older_segment = bool(answer[FLAGS] & _OLDER_SEGMENT)

    def fetched(self, *, read_committed: bool) -> FetchedPartition:
        """What the client is told of it."""
        return FetchedPartition(
            self.wanted.topic,
            self.wanted.partition,
            self.error,
            self.high_watermark,
            self.last_stable_offset,
            self.log_start,
            self.length_bytes,
            self.aborted if read_committed else None,
            -1,
            self.diverging,
        )
