"""Audits: reads audited topics, commits of groups, and what network processes have observed; writes `__audit`.

    round:  observations        who appended what, and when                          ┐
            each audited log    up to where it was readable a round ago              │ one batch in `__audit`:
            commits             up to the same moment: what groups have passed       │ counts, findings, positions
            observations again  up to the same moment: what clients have fetched     ┘

A round reads what was there when the round before began, at least ROUND_MS ago. By then the network processes have
appended their observations of it. Commits and fetches come after the logs, so they never pass what is counted of a log.

Never: opens a log for writing; keeps state that is not in a topic; holds up a producer or a consumer. Dies: the next
life goes on after the last round in `__audit`. An error of a log ends its part of the round; the next round goes on.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from appliance.clock import Clock
from appliance.cluster import OBSERVATIONS
from appliance.message_audit.attribution import Appended, Attribution
from appliance.message_audit.batches import (
    ID_HEADER,
    bucket_of,
    facts_of,
    part_of_header,
    parts_of_records,
    time_of,
)
from appliance.message_audit.commits import Commit, Commits
from appliance.message_audit.entry import Finding, Kind
from appliance.message_audit.observation import Fetched, decode
from appliance.message_audit.positions import (
    GROUPS_MAX,
    UNCHANGED,
    GroupPosition,
    PartitionKey,
    PartitionPosition,
    Positions,
)
from appliance.message_audit.record_ids import follow, parse_id
from appliance.message_audit.tally import OTHER_BUCKET, Key, Part, Tally
from appliance.partition_access.access import PartitionAccess
from appliance.partition_access.places import LogPlace
from appliance.services.audit_records import HEADERS_BYTES, ReadBatch, read_stretch
from appliance.services.audit_state import AuditState
from appliance.services.audit_topics import Audited, AuditTopics
from appliance.services.errand import Pause, Step, Work

ROUND_MS: Final = 1_000
ATTRIBUTED_PARTITIONS_MAX: Final = 10_000
OBSERVED_AGAIN: Final = 2_000
"""So many observations before the position are read again after a start, for the names in them."""
FIRST_BYTES: Final = 256 << 10
"""How much of a log the first read of a range takes; each further one takes twice as much."""
FOUND_MAX: Final = 64
"""Logs of which the headers of the last such read are kept, because groups commit often."""
CHANGED_MAX: Final = 64
"""A round ends when it has changed so many partitions, because the positions of each are written down."""


class Counts:
    """What the audit of this process has done since its start."""

    __slots__ = ("findings", "lost_observations", "records", "unnamed_groups")

    def __init__(self) -> None:
        self.records = 0
        self.findings = 0
        self.lost_observations = 0
        self.unnamed_groups = 0


class AuditReader:
    """One process's audit: `work` is for an `Errand`."""

    def __init__(self, topics: AuditTopics, logs: PartitionAccess, clock: Clock) -> None:
        self._topics = topics
        self._logs = logs
        self._clock = clock
        self.counts = Counts()
        self._state = AuditState(topics, logs, clock)
        self._attributions: dict[PartitionKey, Attribution] = {}
        self._named_to = 0
        self._commits: dict[int, Commits] = {}
        self._limits: dict[str | PartitionKey | int, int] = {}
        self._found: dict[PartitionKey, list[ReadBatch]] = {}
        self._tally = Tally()
        self._changed = Positions(observed=UNCHANGED)

    def work(self) -> Work:
        """Audit until the process ends."""
        while True:
            if not self._topics.is_ready:
                yield Pause(None)
                continue
            yield from self._begin()
            while self._topics.is_ready:
                is_behind = yield from self._round()
                if is_behind is None:
                    yield Pause(ROUND_MS)
                    break
                yield from self._state.snapshot()
                yield Pause(0 if is_behind else ROUND_MS)

    def _begin(self) -> Generator[Step, Any, None]:
        yield from self._state.load()
        self._commits = {}
        self._attributions = {}
        self._limits = {}
        self._found = {}
        self._named_to = max(self._state.positions.observed - OBSERVED_AGAIN, 0)
        self._tally, self._changed = Tally(), Positions(observed=UNCHANGED)
        self._limit_all()
        yield Pause(ROUND_MS)  # network processes may have something to say about what is there

    def _limit_all(self) -> None:
        """Note how far everything is readable now: first the commits and observations, so that they are not ahead."""
        limits: dict[str | PartitionKey | int, int] = {}
        for partition, place in enumerate(self._topics.commits):
            if place is not None and self._logs.serves(place):
                limits[partition] = self._logs.high_watermark(place)
        observations = self._topics.place(OBSERVATIONS)
        if observations is not None and self._logs.serves(observations):
            limits[OBSERVATIONS] = self._logs.high_watermark(observations)
        for key, audited in self._topics.audited.items():
            place = audited.place
            if place is not None and self._logs.serves(place):
                limits[key] = self._logs.high_watermark(place)
        self._limits = limits

    def _round(self) -> Generator[Step, Any, bool | None]:
        """Count what was readable a round ago; return whether there is more of it, None if it was not written."""
        yield from self._name()
        is_behind = False
        for key, audited in list(self._topics.audited.items()):
            is_behind |= yield from self._count_log(key, audited)
            yield from self._count_late(key, audited)
            if self._is_full:
                is_behind = True
                break
        if not is_behind:
            is_behind = yield from self._count_commits()
        if not is_behind:
            is_behind = yield from self._count_fetches()
        # Positions alone wait for counts. A death before that has no effect: what is read again has nothing to count.
        if self._tally or len(self._changed.partitions) >= CHANGED_MAX:
            is_written = yield from self._state.write(self._tally, self._changed)
            if not is_written:
                return None
            self._tally, self._changed = Tally(), Positions(observed=UNCHANGED)
        if not is_behind:
            self._limit_all()
        return is_behind

    @property
    def _is_full(self) -> bool:
        return self._tally.is_full or len(self._changed.partitions) >= CHANGED_MAX

    def _position(self, key: PartitionKey) -> PartitionPosition | None:
        return self._state.positions.partitions.get(key)

    def _change(self, key: PartitionKey, position: PartitionPosition) -> None:
        self._state.positions.partitions[key] = position
        self._changed.partitions[key] = position

    # Who appended what

    def _name(self) -> Generator[Step, Any, None]:
        """Read all observations that there are, for the names of producers."""
        place = self._topics.place(OBSERVATIONS)
        if place is None or not self._logs.serves(place):
            return
        end = self._logs.high_watermark(place)
        if self._logs.log_end(place) < self._named_to:  # the topic was deleted and created again
            self._named_to = 0
        while self._named_to < end:
            stretch = yield from read_stretch(place, self._named_to, headers_only=False)
            if not stretch.batches and stretch.log_start <= self._named_to:
                return
            self._named_to = max(self._named_to, stretch.log_start)
            for batch in stretch.batches:
                self._named_to = batch.end
                for record in batch.records:
                    observation = decode(record.value)
                    if observation is None:
                        continue
                    self.counts.lost_observations += observation.lost
                    for each in observation.produced:
                        key = each.topic_id, each.partition
                        if key not in self._topics.audited:
                            continue
                        attribution = self._attributions.get(key)
                        if attribution is None:
                            if len(self._attributions) >= ATTRIBUTED_PARTITIONS_MAX:
                                continue
                            attribution = self._attributions[key] = Attribution()
                        attribution.add(Appended(*each[2:]))

    # What came in

    def _count_log(self, key: PartitionKey, audited: Audited) -> Generator[Step, Any, bool]:
        """Count a log up to its limit; return whether more of it is below the limit."""
        place, limit = audited.place, self._limits.get(key)
        if place is None or limit is None or not self._logs.serves(place):
            return False
        position = self._position(key)
        if position is None:
            begin = self._logs.log_start(place)
            position = PartitionPosition(begin, begin)
            self._change(key, position)
            # Its groups may have committed before. What was read already has no effect on others.
            self._commits.clear()
            self._state.positions.commits.clear()
        if self._logs.log_end(place) < position.next:  # a power cut has taken the end of the log
            position.next = self._logs.log_end(place)
            self._change(key, position)
        attribution = self._attributions.get(key)
        while position.next < limit:
            stretch = yield from read_stretch(place, position.next, headers_only=not audited.by_headers)
            if not stretch.batches:
                if stretch.log_start <= position.next:
                    return False
                self._note_gone(audited, position, stretch.log_start)
                self._change(key, position)
            for batch in stretch.batches:
                if batch.end > limit:
                    break
                yield from self._count_batch(key, audited, position, batch)
                position.next = batch.end
                self._change(key, position)
                if self._is_full:
                    return True
            else:
                continue
            break
        if attribution is not None:
            attribution.forget_below(position.next)
        return False

    def _note_gone(self, audited: Audited, position: PartitionPosition, log_start: int) -> None:
        """Retention was faster than the audit: records are gone that were not counted."""
        self._find(audited, Kind.UNSEEN, first=position.next, last=log_start - 1)
        position.next = log_start

    def _count_batch(
        self, key: PartitionKey, audited: Audited, position: PartitionPosition, batch: ReadBatch
    ) -> Generator[Step, Any, None]:
        parts = yield from self._parts(audited, batch, first=position.next, end=batch.end)
        attribution = self._attributions.get(key)
        seen = None if attribution is None else attribution.of(batch.first)
        client = principal = ""
        at_ms: int | None = None
        if seen is not None:
            appended, at_ms = seen
            client, principal = appended.client, appended.principal
        for part in parts:
            if part.records:
                self.counts.records += part.records
                self._tally.count(
                    Key(
                        Kind.PRODUCED,
                        audited.topic,
                        audited.partition,
                        part.bucket,
                        audited.bucket_ms,
                        client,
                        principal,
                    ),
                    part,
                    at_ms=at_ms,
                )
        if audited.by_headers:
            self._follow_ids(audited, position, batch)

    def _follow_ids(self, audited: Audited, position: PartitionPosition, batch: ReadBatch) -> None:
        for record in batch.records:
            if record.offset < position.next:
                continue
            value = next((value for name, value in record.headers if name == ID_HEADER), None)
            found_id = parse_id(value)
            found = None if found_id is None else follow(position.sources, *found_id)
            if found is not None:
                bucket = bucket_of(time_of(record, by_headers=True), audited.bucket_ms)
                key = Key(Kind.PRODUCED, audited.topic, audited.partition, bucket, audited.bucket_ms)
                self._tally.found_id(key, found, offset=record.offset)
                self.counts.findings += 1

    def _parts(
        self, audited: Audited, batch: ReadBatch, *, first: int, end: int
    ) -> Generator[Step, Any, list[Part]]:
        """Return what [first, end) has of a batch; reads the batch if its header does not say it."""
        facts = facts_of(batch.header)
        if not facts.records:
            return []
        if not audited.by_headers or batch.is_unread:
            part = part_of_header(facts, audited.bucket_ms, first=first, end=end)
            if part is not None:
                return [part]
        records = batch.records
        place = audited.place
        if not records and place is not None and not batch.is_unread:
            stretch = yield from read_stretch(place, batch.first, headers_only=False)
            found = [each for each in stretch.batches if each.first == batch.first]
            records = found[0].records if found else []
        if not records:  # gone, or not to be decoded: all in the bucket of its first record
            part = part_of_header(
                facts._replace(max_ms=facts.first_ms), audited.bucket_ms, first=first, end=end
            )
            return [] if part is None else [part]
        return parts_of_records(
            records, facts, audited.bucket_ms, first=first, end=end, by_headers=audited.by_headers
        )

    def _find(
        self, audited: Audited, kind: Kind, *, first: int, last: int, group: str = "", at_ms: int = -1
    ) -> None:
        self.counts.findings += 1
        self._tally.found(
            Finding(
                kind=kind.value,
                topic=audited.topic,
                partition=audited.partition,
                bucket=bucket_of(at_ms, audited.bucket_ms) if at_ms >= 0 else OTHER_BUCKET,
                bucket_ms=audited.bucket_ms,
                group=group,
                first=first,
                last=last,
            )
        )

    # What went out

    def _count_range(
        self, key: PartitionKey, audited: Audited, counted: Key, *, first: int, end: int, at_ms: int
    ) -> Generator[Step, Any, int]:
        """Count [first, end) of a log as `counted`; return how far it came. The key's bucket is set here."""
        bytes_max = FIRST_BYTES
        while first < end:
            batches = self._found_before(key, first)
            if not batches:
                place = audited.place
                if place is None or not self._logs.serves(place):
                    return first
                stretch = yield from read_stretch(
                    place, first, headers_only=not audited.by_headers, bytes_max=bytes_max
                )
                bytes_max = min(2 * bytes_max, HEADERS_BYTES)
                batches = stretch.batches
                if not batches:
                    if stretch.log_start <= first:
                        return first
                    gone_to = min(stretch.log_start, end)
                    self._find(
                        audited, Kind.UNSEEN, first=first, last=gone_to - 1, group=counted.group, at_ms=at_ms
                    )
                    first = gone_to
                elif not audited.by_headers:
                    self._found[key] = batches
                    if len(self._found) > FOUND_MAX:
                        del self._found[next(iter(self._found))]
            for batch in batches:
                if batch.first >= end:
                    first = end  # compaction has removed what was here
                    break
                upto = min(batch.end, end)
                parts = yield from self._parts(audited, batch, first=first, end=upto)
                for part in parts:
                    if part.records:
                        self._tally.count(counted._replace(bucket=part.bucket), part, at_ms=at_ms)
                first = max(first, upto)
        return first

    def _found_before(self, key: PartitionKey, offset: int) -> list[ReadBatch]:
        """Return the batches from `offset` on that the last read of this log has found, if `offset` is among them."""
        found = self._found.get(key)
        if not found or not found[0].first <= offset < found[-1].end:
            return []
        return [batch for batch in found if batch.end > offset]

    def _count_commits(self) -> Generator[Step, Any, bool]:
        for partition, place in enumerate(self._topics.commits):
            limit = self._limits.get(partition)
            if place is None or limit is None or not self._logs.serves(place):
                continue
            commits = self._commits.get(partition)
            if commits is None:
                start = self._state.positions.commits.get(partition, self._logs.log_start(place))
                commits = self._commits[partition] = Commits(start)
            is_behind = yield from self._read_commits(partition, place, commits, limit=limit)
            if is_behind:
                return True
        return False

    def _read_commits(
        self, partition: int, place: LogPlace, commits: Commits, *, limit: int
    ) -> Generator[Step, Any, bool]:
        while commits.position < limit:
            stretch = yield from read_stretch(place, commits.position, headers_only=False)
            if not stretch.batches:
                if stretch.log_start <= commits.position:
                    return False
                commits.position = stretch.log_start
            for batch in stretch.batches:
                if batch.end > limit:
                    return False
                for commit in commits.take(batch.header, batch.records):
                    yield from self._take_commit(commit)
                self._changed.commits[partition] = commits.resume_at
                if self._is_full:
                    return True
        return False

    def _take_commit(self, commit: Commit) -> Generator[Step, Any, None]:
        key = self._topics.names.get((commit.topic, commit.partition))
        position = None if key is None else self._position(key)
        if key is None or position is None:
            return
        audited = self._topics.audited[key]
        group = position.groups.get(commit.group)
        if group is None:
            if len(position.groups) >= GROUPS_MAX:
                self.counts.unnamed_groups += 1
                return
            group = position.groups[commit.group] = GroupPosition(position.begin, position.begin, -1, -1)
        elif commit.at <= group.at:
            return
        if commit.offset < group.committed:
            self._find(
                audited,
                Kind.REWOUND,
                first=commit.offset,
                last=group.committed - 1,
                group=commit.group,
                at_ms=commit.at_ms,
            )
            group.counted = min(group.counted, max(commit.offset, position.begin))
        group.committed, group.at, group.at_ms = commit.offset, commit.at, commit.at_ms
        counted = Key(
            Kind.COMMITTED,
            audited.topic,
            audited.partition,
            OTHER_BUCKET,
            audited.bucket_ms,
            group=commit.group,
        )
        end = min(commit.offset, position.next)
        group.counted = yield from self._count_range(
            key, audited, counted, first=group.counted, end=end, at_ms=commit.at_ms
        )
        self._change(key, position)

    def _count_late(self, key: PartitionKey, audited: Audited) -> Generator[Step, Any, None]:
        """Count what groups had committed before the log was counted up to there, for example without a leader."""
        position = self._position(key)
        if position is None:
            return
        for name, group in position.groups.items():
            end = min(group.committed, position.next)
            if group.counted < end:
                counted = Key(
                    Kind.COMMITTED,
                    audited.topic,
                    audited.partition,
                    OTHER_BUCKET,
                    audited.bucket_ms,
                    group=name,
                )
                reached = yield from self._count_range(
                    key, audited, counted, first=group.counted, end=end, at_ms=group.at_ms
                )
                if reached > group.counted:
                    group.counted = reached
                    self._change(key, position)

    def _count_fetches(self) -> Generator[Step, Any, bool]:
        place, limit = self._topics.place(OBSERVATIONS), self._limits.get(OBSERVATIONS)
        if place is None or limit is None or not self._logs.serves(place):
            return False
        observed = self._state.positions.observed
        if self._logs.log_end(place) < observed:
            observed = self._logs.log_start(place)  # the topic was deleted and created again
        while observed < limit:
            stretch = yield from read_stretch(place, observed, headers_only=False)
            if not stretch.batches and stretch.log_start <= observed:
                return False
            observed = max(observed, stretch.log_start)
            for batch in stretch.batches:
                if batch.end > limit:
                    return False
                for record in batch.records:
                    observation = decode(record.value)
                    for fetched in () if observation is None else observation.fetched:
                        yield from self._take_fetch(fetched)
                observed = batch.end
                self._changed.observed = self._state.positions.observed = observed
                if self._is_full:
                    return True
        return False

    def _take_fetch(self, fetched: Fetched) -> Generator[Step, Any, None]:
        key = fetched.topic_id, fetched.partition
        position, audited = self._position(key), self._topics.audited.get(key)
        if position is None or audited is None:
            return
        counted = Key(
            Kind.FETCHED,
            audited.topic,
            audited.partition,
            OTHER_BUCKET,
            audited.bucket_ms,
            fetched.client,
            fetched.principal,
        )
        yield from self._count_range(
            key,
            audited,
            counted,
            first=max(fetched.first, position.begin),
            end=min(fetched.end, position.next),
            at_ms=fetched.at_ms,
        )
