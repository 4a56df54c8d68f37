"""Rounds over logs, commits and observations: what audit and trace have in common.

    round:  observations        who appended what, and when                          ┐
            each followed log   up to where it was readable a round ago              │ one batch: results, and the
            commits             up to the same moment: what groups have passed       │ positions up to which they go
            observations again  up to the same moment: what clients have fetched     ┘

A round reads what was there when the round before began, at least ROUND_MS ago. By then the network processes have
appended their observations of it. Commits and fetches come after the logs, so they never pass what was read of a log.

Never: opens a log for writing; keeps state that is not in a topic; holds up a producer or a consumer. Dies: the next
life goes on after the last round that was written. An error of a log ends its part of the round.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Final, Generic

from appliance.clock import Clock
from appliance.cluster import OBSERVATIONS
from appliance.message_audit.attribution import Appended, Attribution
from appliance.message_audit.commits import Commit, Commits
from appliance.message_audit.observation import NAME_LENGTH_MAX, Fetched, decode
from appliance.message_audit.portions import Result
from appliance.message_audit.positions import (
    GROUPS_MAX,
    UNCHANGED,
    GroupPosition,
    PartitionKey,
    PartitionPosition,
    Positions,
)
from appliance.partition_access.access import PartitionAccess
from appliance.partition_access.places import LogPlace
from appliance.services.errand import Pause, Step, Work
from appliance.services.followed_topics import F, FollowedTopics
from appliance.services.giving_way import GivingWay
from appliance.services.log_reads import Stretch, read_stretch
from appliance.services.round_state import RoundState

ROUND_MS: Final = 1_000
ATTRIBUTED_PARTITIONS_MAX: Final = 10_000
OBSERVED_AGAIN: Final = 2_000
"""So many observations before the position are read again after a start, for the names in them."""
CHANGED_MAX: Final = 64
"""A round ends when it has changed so many partitions, because the positions of each are written down."""


def no_steps() -> Generator[Step, Any, None]:
    """Return the steps of what asks nothing."""
    yield from ()


class Rounds(Generic[F]):
    """`work` is for an `Errand`. A subclass says what is made of batches, commits and fetches.

    Args:
        way: says how long to rest after a step; None: go on at once.
    """

    def __init__(
        self,
        topics: FollowedTopics[F],
        logs: PartitionAccess,
        clock: Clock,
        *,
        way: GivingWay | None = None,
    ) -> None:
        self._way = way
        self._topics = topics
        self._logs = logs
        self._clock = clock
        self._state = RoundState(topics, logs, clock)
        self._attributions: dict[PartitionKey, Attribution] = {}
        self._named_to = 0
        self._commits: dict[int, Commits] = {}
        self._limits: dict[str | PartitionKey | int, int] = {}
        self._changed = Positions(observed=UNCHANGED)
        self.limited_ms = 0
        """When the limits were noted: below them, everything had been replicated by then."""
        self.lost_observations = 0
        self.refused_groups = 0

    # What a subclass says

    @property
    def _is_full(self) -> bool:
        """Whether the round should end."""
        return len(self._changed.partitions) >= CHANGED_MAX

    @property
    def _has_results(self) -> bool:
        raise NotImplementedError

    def _results(self) -> Iterable[Result]:
        """Return each record to write."""
        raise NotImplementedError

    def _forget_results(self) -> None:
        """The results are written, or are to be made again."""
        raise NotImplementedError

    def _results_written(self) -> None:
        """The results are in their topic."""

    def _bytes_max(self, followed: F) -> int | None:
        """How much of a log to read in a step; None: headers of batches are enough."""
        raise NotImplementedError

    def _take_stretch(
        self, key: PartitionKey, followed: F, position: PartitionPosition, stretch: Stretch
    ) -> Generator[Step, Any, None]:
        """Take batches, and move `position.next` behind the last one that was taken: behind all, unless `_is_full`."""
        raise NotImplementedError

    def _take_gap(self, followed: F, *, first: int, end: int) -> None:
        """Records [first, end) were removed before they were read."""
        raise NotImplementedError

    def _log_read(self, key: PartitionKey, followed: F) -> Generator[Step, Any, None]:
        """The log of a partition was read as far as the round goes."""
        raise NotImplementedError

    def _take_commit(
        self,
        key: PartitionKey,
        followed: F,
        position: PartitionPosition,
        *,
        commit: Commit,
        group: GroupPosition,
    ) -> Generator[Step, Any, None]:
        """A group has committed; `group` still has its commit before."""
        raise NotImplementedError

    def _take_fetch(
        self, key: PartitionKey, followed: F, position: PartitionPosition, *, fetched: Fetched
    ) -> Generator[Step, Any, None]:
        raise NotImplementedError

    # The loop

    def work(self) -> Work:
        """Do rounds until the process ends."""
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
        self._named_to = max(self._state.positions.observed - OBSERVED_AGAIN, 0)
        self._changed = Positions(observed=UNCHANGED)
        self._forget_results()
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
        for key, followed in self._topics.followed.items():
            place = followed.place
            if place is not None and self._logs.serves(place):
                limits[key] = self._logs.high_watermark(place)
        self._limits = limits
        for key in [each for each in self._attributions if each not in self._topics.followed]:
            del self._attributions[key]  # otherwise deleted topics would take the room of new ones
        self.limited_ms = self._clock.now_ms()

    def _round(self) -> Generator[Step, Any, bool | None]:
        """Read what was readable a round ago; return whether there is more of it, None if it was not written."""
        yield from self._name()
        is_behind = False
        for key, followed in list(self._topics.followed.items()):
            is_behind |= yield from self._read_log(key, followed)
            yield from self._log_read(key, followed)
            if self._is_full:
                is_behind = True
                break
        if not is_behind:
            is_behind = yield from self._read_all_commits()
        if not is_behind:
            is_behind = yield from self._read_fetches()
        # Positions alone wait for results. A death before that has no effect: what is read again has no results.
        if self._has_results or len(self._changed.partitions) >= CHANGED_MAX:
            is_written = yield from self._state.write(list(self._results()), self._changed)
            if not is_written:
                return None
            self._changed = Positions(observed=UNCHANGED)
            self._results_written()
            self._forget_results()
        if not is_behind:
            self._limit_all()
            if self._way is not None:
                self._way.caught_up()
        return is_behind

    def _rest(self) -> Generator[Step, Any, None]:
        """Leave the processors to others after a read, if they want them."""
        if self._way is not None and (rest_ms := self._way.rest_ms()):
            yield Pause(rest_ms)

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
                    self._name_by(record.value)
            yield from self._rest()

    def _name_by(self, value: bytes | None) -> None:
        observation = decode(value)
        if observation is None:
            return
        self.lost_observations += observation.lost
        for each in observation.produced:
            key = each.topic_id, each.partition
            if key not in self._topics.followed:
                continue
            attribution = self._attributions.get(key)
            if attribution is None:
                if len(self._attributions) >= ATTRIBUTED_PARTITIONS_MAX:
                    continue
                attribution = self._attributions[key] = Attribution()
            attribution.add(
                Appended(each.first, each.end, each.first_ms, each.last_ms, each.client, each.principal)
            )

    def _appended_around(self, key: PartitionKey, offset: int) -> tuple[Appended | None, int | None]:
        """Return who appended an offset and when, None if nobody has seen it; and up to where this holds."""
        attribution = self._attributions.get(key)
        return (None, None) if attribution is None else attribution.around(offset)

    def _appended_by(self, key: PartitionKey, offset: int) -> tuple[str, str, int | None]:
        """Return (client, principal, time in ms) of an append; empty, empty and None if nobody has seen it."""
        attribution = self._attributions.get(key)
        seen = None if attribution is None else attribution.of(offset)
        if seen is None:
            return "", "", None
        appended, at_ms = seen
        return appended.client, appended.principal, at_ms

    # What came in

    def _read_log(self, key: PartitionKey, followed: F) -> Generator[Step, Any, bool]:
        """Read a log up to its limit; return whether more of it is below the limit."""
        place, limit = followed.place, self._limits.get(key)
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
            for offset in [offset for offset in position.traced if offset >= position.next]:
                del position.traced[offset]
            self._change(key, position)
        bytes_max = self._bytes_max(followed)
        while position.next < limit:
            stretch = yield from read_stretch(
                place, position.next, headers_only=bytes_max is None, bytes_max=bytes_max
            )
            if not stretch.headers:
                if stretch.log_start <= position.next:
                    return False
                self._take_gap(followed, first=position.next, end=stretch.log_start)
                position.next = stretch.log_start
                self._change(key, position)
                continue
            readable = stretch.below(limit)
            if readable.headers:
                yield from self._take_stretch(key, followed, position, readable)
                self._change(key, position)
            if self._is_full:
                return True
            if readable is not stretch:
                return False
            yield from self._rest()
        attribution = self._attributions.get(key)
        if attribution is not None:
            attribution.forget_below(position.next)
        return False

    # What went out

    def _read_all_commits(self) -> Generator[Step, Any, bool]:
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
                    yield from self._find_commit(commit)
                self._changed.commits[partition] = commits.resume_at
                self._state.positions.commits[partition] = commits.resume_at
                if self._is_full:
                    return True
            yield from self._rest()
        return False

    def _find_commit(self, commit: Commit) -> Generator[Step, Any, None]:
        key = self._topics.names.get((commit.topic, commit.partition))
        position = None if key is None else self._position(key)
        if key is None or position is None:
            return
        group = position.groups.get(commit.group)
        if group is None:
            if len(position.groups) >= GROUPS_MAX or len(commit.group) > NAME_LENGTH_MAX:
                self.refused_groups += 1
                return
            group = position.groups[commit.group] = GroupPosition(position.begin, position.begin, -1, -1)
        elif commit.at <= group.at:
            return
        yield from self._take_commit(key, self._topics.followed[key], position, commit=commit, group=group)
        self._change(key, position)

    def _read_fetches(self) -> Generator[Step, Any, bool]:
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
                        key = fetched.topic_id, fetched.partition
                        position, followed = self._position(key), self._topics.followed.get(key)
                        if position is not None and followed is not None:
                            yield from self._take_fetch(key, followed, position, fetched=fetched)
                observed = batch.end
                self._changed.observed = self._state.positions.observed = observed
                if self._is_full:
                    return True
            yield from self._rest()
        return False
