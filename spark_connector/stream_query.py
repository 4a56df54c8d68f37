"""A streaming query, without Spark: where it begins, how far it can go now, and the tasks between two positions.

What has been promised once is given again: the tasks between two positions read the same records at every replay, or
fail, as long as the log holds them; the lease sees to that. Only compaction may take records away in between.

| found at a partition | what is lost | without `failOnDataLoss` it goes on |
|---|---|---|
| the topic has another id | everything not read of the old one | at the begin of the new one |
| the log begins later | what lies between | at the log start |
| the last record's epoch ended earlier | nothing, but what was read has been replaced | where the epoch ended |
| the log ends earlier | the same | at the log end |
| the partition is gone | what was not read | without it; should it come again, from its begin |
| a new partition does not begin at 0 | its first records | at its log start |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from spark_connector.admission import Patience, admitted
from spark_connector.batch_query import LOG, lease_on
from spark_connector.bounds import end_offset
from spark_connector.directory import UNKNOWN, Directories, PartitionView
from spark_connector.epochs import epoch_end, epoch_of
from spark_connector.errors import DataLost, NotReadable, PartitionMoved, UnknownTopic
from spark_connector.lease import STOPPED_TTL_MS, STREAM_TTL_MS, ReaderLease
from spark_connector.offsets import Name, asks_for, check_named, chosen, chosen_there, start_of
from spark_connector.options import Options
from spark_connector.planning import OffsetRange, ScanRange, plan
from spark_connector.stream_offsets import NO_EPOCH, Mark, StreamOffsets

_MOVES_EVERY_S: Final = 5.0
_RENEWALS_A_LEASE: Final = 10
_CAUGHT_UP_WITHIN_S: Final = 30.0
_POLL_S: Final = 0.05
_LOOKS: Final = 5


@dataclass(frozen=True, slots=True)
class _Look:
    """What can be read of a partition; no view where it is not readable for now."""

    view: PartitionView | None
    begin: int
    end: int


class StreamQuery:
    """Keeps a lease and the time; positions come from and go to the caller.

    Args:
        options: read with `streaming=True`.
        clock: seconds that never go back.
    """

    def __init__(self, options: Options, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._directories = Directories(options.paths)
        self._patience = Patience(options.min_offsets_per_trigger, options.max_trigger_delay_ms)
        self._lease: ReaderLease | None = None
        self._leased_at_s: float | None = None
        self._unreadable: set[Name] = set()
        self.latest: StreamOffsets | None = None
        """What was there when `next` looked last; None before."""
        self._held: dict[Name, int] = {}
        self._begun_at: dict[Name, int] = {}
        """Where the micro-batch under way begins, or would; Spark asks for the next one when the last one is done."""

    def initial(self) -> StreamOffsets:
        """Where a query begins that has no checkpoint. Different at every call where the options say `latest`.

        Raises:
            InvalidOption, UnknownTopic, NotReadable: as for a batch.
        """
        names = chosen(self._directories, self._options.choice)
        check_named(self._options.starting, names)
        views = [self._directories.partition(*name) for name in names]
        marks = {_name(view): _mark(view, start_of(view, self._options)) for view in views}
        position = StreamOffsets(uuid4().hex, _ids(views), marks)
        self._hold(position)
        # A log may have lost its oldest segments before the lease stood.
        again = {name: self._directories.partition(*name) for name in names}
        begins = {_name(view): view.log_start_offset for view in views}
        moved = {
            name: Mark(again[name].log_start_offset) if mark.offset == begins[name] else mark
            for name, mark in marks.items()
        }
        return StreamOffsets(position.lease, position.ids, moved)

    def ends(self, start: StreamOffsets, *, until: StreamOffsets | None = None) -> StreamOffsets:
        """The position behind everything that can be read now, as a stream sees it that is at `start`.

        Raises:
            DataLost: something between is lost, and `failOnDataLoss` holds.
        """
        looks = self._look(start, until)
        return _position(start, looks, {name: look.end for name, look in looks.items()})

    def next(
        self,
        start: StreamOffsets,
        *,
        most: int | None = None,
        waits: bool = False,
        until: StreamOffsets | None = None,
    ) -> StreamOffsets:
        """The end of the micro-batch that begins at `start`; `start` itself where there is none to be made.

        Args:
            most: offsets in all.
            waits: for `minOffsetsPerTrigger`, up to `maxTriggerDelay`.
            until: not beyond this position, and nothing of partitions that it does not know.

        Raises:
            DataLost: as `ends`.
        """
        self._hold(start)
        self._begun_at = {name: start.marks[name].offset for name in start}
        looks = self._look(start, until)
        available = {name: look.end - look.begin for name, look in looks.items()}
        ends = {name: Mark(look.end) for name, look in looks.items()}
        self.latest = StreamOffsets(start.lease, start.ids, ends)
        if waits and not self._patience.lets_pass(sum(available.values()), now_ms=self._clock() * 1000):
            return start
        taken = admitted(available, most)
        return _position(
            start, looks, {name: look.begin + taken.get(name, 0) for name, look in looks.items()}
        )

    def tasks(self, start: StreamOffsets, end: StreamOffsets) -> list[ScanRange]:
        """The tasks that read from one position to another; at every replay the same records.

        Raises:
            DataLost: they are not all there any more, and `failOnDataLoss` holds.
            NotReadable: the log is not readable up to the end again in time, as after the broker's restart.
        """
        if start == end:
            return []
        self._hold(start)
        for _ in range(_LOOKS - 1):
            try:
                return self._planned(start, end)
            except PartitionMoved as moved:
                LOG.info("%s: retrying", moved)
        return self._planned(start, end)

    def _planned(self, start: StreamOffsets, end: StreamOffsets) -> list[ScanRange]:
        views, ranges = [], []
        for name in end:
            found = self._range(name, start, end)
            if found is not None:
                view, begin = found
                views.append(view)
                ranges.append(OffsetRange(*name, begin, end.marks[name].offset))
        return plan(
            views,
            ranges,
            isolation=self._options.isolation,
            lease=self._lease.ref if self._lease else None,
            split_bytes=self._options.split_bytes,
            min_splits=self._options.min_partitions or 1,
            max_records=self._options.max_records_per_partition,
        )

    def done(self, end: StreamOffsets) -> None:
        """Everything below `end` is read for good: the lease lets go of it, a little later."""
        if self._lease is None or self._leased_at_s is None:
            return
        if self._clock() - self._leased_at_s < _MOVES_EVERY_S:
            return
        self._move({name: end.marks[name].offset for name in end})

    def stop(self) -> None:
        """The query has ended, perhaps to be started again from its checkpoint.

        Where everything that was seen is read, the lease is released. Else it holds the rest for STOPPED_TTL_MS.
        """
        lease, self._lease = self._lease, None
        if lease is None:
            return
        latest = self.latest
        if latest is not None and all(
            self._begun_at.get(name, -1) >= latest.marks[name].offset for name in latest
        ):
            lease.release()
            return
        lease.stop_beating()
        ttl_ms = min(lease.ref.ttl_ms, STOPPED_TTL_MS)
        lease.move(self._there({**self._held, **self._begun_at}), ttl_ms=ttl_ms)

    def _look(self, start: StreamOffsets, until: StreamOffsets | None) -> dict[Name, _Look]:
        """At every partition that is chosen: from where to where it can be read."""
        names = chosen_there(self._directories, self._options.choice)
        looks = {}
        for name in sorted({*names, *start.marks}):
            known = start.marks.get(name)
            if until is not None and known is None and name not in until.marks:
                continue
            if known is not None and not asks_for(self._options.choice, name):
                self._lose(
                    f"{name[0]}-{name[1]} was read up to {known.offset}, and is not asked for any more"
                )
                continue
            try:
                view = self._directories.partition(*name)
            except UnknownTopic:
                self._lose(f"partition {name[0]}-{name[1]} is gone")
                continue
            except NotReadable as fault:
                if name not in self._unreadable:
                    LOG.warning("%s: no new records are read for now", fault)
                self._unreadable.add(name)
                if known is not None:
                    looks[name] = _Look(None, known.offset, known.offset)
                continue
            self._unreadable.discard(name)
            begin = self._begin(view, start)
            end = end_offset(view, self._options.isolation, durable=self._options.ends_durable)
            if until is not None:
                end = min(end, until.marks[name].offset if name in until.marks else begin)
            looks[name] = _Look(view, begin, max(begin, end))
        return looks

    def _begin(self, view: PartitionView, start: StreamOffsets) -> int:
        """From where the partition is read on."""
        mark = start.marks.get(_name(view))
        if mark is None:
            if view.log_start_offset > 0:
                self._lose(f"{view.name} is new and begins at {view.log_start_offset}, not at 0")
            return view.log_start_offset
        if not _same_id(view, start):
            self._lose(f"topic {view.topic} was deleted and created again")
            return view.log_start_offset
        if mark.offset < view.log_start_offset:
            self._lose(f"{view.name} was read up to {mark.offset}, and begins at {view.log_start_offset} now")
            return view.log_start_offset
        ended = epoch_end(view, mark.epoch) if mark.epoch != NO_EPOCH else UNKNOWN
        if 0 <= ended < mark.offset and (_says_end(view) or ended < view.log_end_offset):
            self._lose(
                f"{view.name} was read up to {mark.offset}; its leader epoch {mark.epoch} ended at {ended}:"
                " the log was cut"
            )
            return max(ended, view.log_start_offset)
        if UNKNOWN != view.log_end_offset < mark.offset and _says_end(view):
            self._lose(f"{view.name} was read up to {mark.offset}, and ends at {view.log_end_offset} now")
            return view.log_end_offset
        return mark.offset

    def _range(
        self, name: Name, start: StreamOffsets, end: StreamOffsets
    ) -> tuple[PartitionView, int] | None:
        """The partition and from where it is read to `end`; None if nothing of it is."""
        mark = end.marks[name]
        if start.marks.get(name) == mark and start.ids.get(name[0]) == end.ids.get(name[0]):
            return None
        try:
            view = self._caught_up(name, mark.offset)
        except UnknownTopic:
            self._lose(f"partition {name[0]}-{name[1]} is gone")
            return None
        if not _same_id(view, end):
            self._lose(f"topic {view.topic} was deleted and created again")
            return None
        begin = self._begin(view, start)
        if view.high_watermark < mark.offset:
            self._lose(f"{view.name} is to be read up to {mark.offset}, and ends at {view.log_end_offset}")
            return None
        return (view, begin) if begin < mark.offset else None

    def _caught_up(self, name: Name, offset: int) -> PartitionView:
        """The partition once it may be read up to `offset`, or once it is sure that it never may again."""
        deadline_s = self._clock() + _CAUGHT_UP_WITHIN_S
        while True:
            try:
                view = self._directories.partition(*name)
            except NotReadable:
                if self._clock() > deadline_s:
                    raise
            else:
                if view.high_watermark >= offset or (_says_end(view) and 0 <= view.log_end_offset < offset):
                    return view
                if self._clock() > deadline_s:
                    raise NotReadable(
                        f"{view.name} was readable up to {offset}, and is only up to {view.high_watermark} now"
                    )
            time.sleep(_POLL_S)

    def _hold(self, position: StreamOffsets) -> None:
        """Takes the lease of that name at the position, or renews it in time."""
        now_s = self._clock()
        if self._leased_at_s is None:
            wanted = self._there({name: position.marks[name].offset for name in position})
            self._lease = lease_on(
                wanted, self._options, kind="stream", id=position.lease, ttl_ms=STREAM_TTL_MS
            )
            if self._lease is not None:
                self._lease.start_beating()
            self._held = {_name(view): offset for view, offset in wanted}
            self._leased_at_s = now_s
        elif self._lease and now_s - self._leased_at_s > self._lease.ref.ttl_ms / 1000 / _RENEWALS_A_LEASE:
            for partition in self._lease.renew():
                LOG.warning("the lease on %s no longer exists", partition)
            self._leased_at_s = now_s

    def _move(self, offsets: Mapping[Name, int]) -> None:
        assert self._lease is not None
        moved = {name: offset for name, offset in offsets.items() if self._held.get(name) != offset}
        wanted = self._there(moved)
        self._held.update({_name(view): offset for view, offset in wanted})
        self._lease.move(wanted)
        self._lease.renew()
        self._leased_at_s = self._clock()

    def _there(self, offsets: Mapping[Name, int]) -> list[tuple[PartitionView, int]]:
        """The partitions among these that can be looked at now."""
        found = []
        for name, offset in offsets.items():
            try:
                found.append((self._directories.partition(*name), offset))
            except (UnknownTopic, NotReadable):
                continue
        return found

    def _lose(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(f"{text}; failOnDataLoss=false would continue with the records that exist")
        LOG.warning("%s", text)


def _says_end(view: PartitionView) -> bool:
    """Whether the end of this copy is the log's: a follower's lags, as long as the leader may come to say more."""
    return view.leads or len(view.homes) == 1


def _name(view: PartitionView) -> Name:
    return view.topic, view.partition


def _ids(views: Iterable[PartitionView]) -> dict[str, str]:
    found = {view.topic: view.topic_id for view in views}
    return {topic: str(topic_id or "") for topic, topic_id in found.items()}


def _same_id(view: PartitionView, position: StreamOffsets) -> bool:
    known = position.ids.get(view.topic, "")
    return not known or view.topic_id is None or known == str(view.topic_id)


def _mark(view: PartitionView, offset: int) -> Mark:
    # The epoch of a record that is there cannot change; that of the next one is not decided yet.
    return Mark(offset, epoch_of(view, offset - 1) if offset > view.log_start_offset else NO_EPOCH)


def _position(
    start: StreamOffsets, looks: Mapping[Name, _Look], offsets: Mapping[Name, int]
) -> StreamOffsets:
    """The position at these offsets; where a partition has not moved, its mark stays as it was, to the letter."""
    marks = {}
    for name, look in looks.items():
        known = start.marks.get(name)
        stays = known is not None and known.offset == offsets[name]
        if known is not None and (look.view is None or (stays and _same_id(look.view, start))):
            marks[name] = known
        elif look.view is not None:
            marks[name] = _mark(look.view, offsets[name])
    ids = {topic: start.ids.get(topic, "") for topic, _ in marks}
    ids.update(_ids([look.view for look in looks.values() if look.view is not None]))
    return StreamOffsets(start.lease, ids, marks)
