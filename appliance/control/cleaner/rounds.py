"""What the cleaner does, as one sequence of steps; who drives it (`agent`) waits, asks and slows down.

    examine    every log that is to be looked at: SURVEY its owner, then its files
    clean      the dirtiest that is dirty enough: SURVEY again, then `LogCleaning`; SWAP for each group
    and so on, until none is

One log's trouble is not the others': a corrupt one is marked uncleanable and said so, a full disk is tried again after
a pause, a log that changed meanwhile is examined again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from appliance.channels.cleaner_channel import BOUNDS, DIRECTORY, FLAGS, CleanerFlag, CleanerOp
from appliance.channels.roles import Role
from appliance.clock import Clock
from appliance.cluster import ClusterImage
from appliance.control.cleaner.compacted_logs import CompactedLog, CompactedLogs
from appliance.errors import ApplianceError, CorruptFile, StorageFault
from appliance.log.chunks import SegmentGone
from appliance.log.cleaned_segment import SegmentOverflow, remove_all_cleaned
from appliance.log.cleaning_bounds import LogBounds
from appliance.log.dirtiness import CleaningAbandoned, MapTooSmall, Swap, dirtiness

if TYPE_CHECKING:
    from appliance.log.cleaning import LogCleaning

_SURVEY, _SWAP = int(CleanerOp.SURVEY), int(CleanerOp.SWAP)
_DONE, _WAITS = int(CleanerFlag.DONE), int(CleanerFlag.WAITS)
_MIB = 1 << 20
_log = logging.getLogger(__name__)


class Ask(NamedTuple):
    """A question for a worker; its answer is sent into the steps, or OwnerLost thrown."""

    owner: Role
    message: tuple[int, ...]


class Moved(NamedTuple):
    """So many bytes were read and written."""

    length_bytes: int


class OwnerLost(ApplianceError):
    """The worker that was asked, or whose log is being cleaned, is gone."""


Answer = Sequence[int]
Steps = Generator[Ask | Moved, Answer, None]


class Rounds:
    """The cleaner's work and what it has counted. `working_for` is the owner of the log at hand."""

    def __init__(
        self,
        logs: CompactedLogs,
        image: Callable[[], ClusterImage | None],
        clock: Clock,
        *,
        map_bytes_max: int,
        retry_ms: int,
    ) -> None:
        self._logs = logs
        self._image = image
        self._clock = clock
        self._map_bytes_max = map_bytes_max
        self._retry_ms = retry_ms
        self.working_for: Role | None = None
        self.rounds = self.cleaned_bytes = self.freed_bytes = self.failures = 0

    def set_limits(self, *, map_bytes_max: int, retry_ms: int) -> None:
        """Goes by new limits from the next log on."""
        self._map_bytes_max = map_bytes_max
        self._retry_ms = retry_ms

    def steps(self) -> Steps:
        """Examines and cleans until there is nothing to do now."""
        while True:
            image = self._image()
            if image is not None:
                self._logs.follow(image)
            for log in self._logs.to_examine(self._clock.now_ms()):
                yield from self._contained(log, self._examine(log))
            dirtiest = self._logs.dirtiest()
            if dirtiest is None:
                return
            yield from self._contained(dirtiest, self._clean(dirtiest))

    def _contained(self, log: CompactedLog, steps: Steps) -> Steps:
        """The steps, with what goes wrong kept to this log."""
        self.working_for = log.owner
        log.must_examine = log.is_held_back = False
        log.found = log.look_again_ms = None
        try:
            yield from steps
        except OwnerLost:
            pass  # its next life says LOOK
        except (SegmentGone, CleaningAbandoned) as change:
            _log.info("%s: %s; will be checked again", log.name, change)
            self._try_again(log)
        except StorageFault as fault:
            self.failures += 1
            _log.warning("compaction of %s failed: %s; retrying in %d ms", log.name, fault, self._retry_ms)
            self._try_again(log)
        else:
            if log.is_held_back:
                self._try_again(log)
        finally:
            self.working_for = None

    def _try_again(self, log: CompactedLog) -> None:
        retry_at_ms = self._clock.now_ms() + self._retry_ms
        log.look_again_ms = min(retry_at_ms, log.look_again_ms or retry_at_ms)

    def _survey(self, log: CompactedLog) -> Generator[Ask | Moved, Answer, LogBounds | None]:
        answer = yield Ask(log.owner, (_SURVEY, 0, 0, log.row, log.incarnation, 0, 0, 0, 0, 0, 0))
        log.is_held_back = bool(answer[FLAGS] & _WAITS)
        if not answer[FLAGS] & _DONE:
            return None  # not served now; its owner says LOOK when it is
        bounds = LogBounds(*answer[BOUNDS])
        self._logs.lies_in(log, answer[DIRECTORY])
        if not log.surveyed:
            # Nobody else writes such files, and nobody is asked to swap any: an earlier life of ours left them.
            remove_all_cleaned(log.directory)
            log.surveyed = True
        if log.uncleanable_since_cuts not in (None, bounds.cuts):
            log.uncleanable_since_cuts = None
        return bounds

    def _examine(self, log: CompactedLog) -> Steps:
        bounds = yield from self._survey(log)
        if bounds is None or log.uncleanable_since_cuts is not None:
            return
        found = dirtiness(
            log.directory,
            bounds,
            log.settings,
            checkpoint=self._logs.checkpoint(log, bounds.cuts),
            now_ms=self._clock.now_ms(),
        )
        log.found, log.look_again_ms = found, found.next_look_ms

    def _clean(self, log: CompactedLog) -> Steps:
        bounds = yield from self._survey(log)
        if bounds is None:
            return
        now_ms = self._clock.now_ms()
        found = dirtiness(
            log.directory,
            bounds,
            log.settings,
            checkpoint=self._logs.checkpoint(log, bounds.cuts),
            now_ms=now_ms,
        )
        if not found.is_cleanable(log.settings):
            log.found, log.look_again_ms = found, found.next_look_ms
            return
        from appliance.log.cleaning import LogCleaning

        began_ns = self._clock.monotonic_ns()
        cleaning = LogCleaning(
            log.directory, found, log.settings, now_ms=now_ms, map_bytes_max=self._map_bytes_max
        )
        try:
            yield from self._drive(log, cleaning, bounds.cuts)
        except (CorruptFile, MapTooSmall, SegmentOverflow) as fault:
            self.failures += 1
            log.uncleanable_since_cuts = bounds.cuts
            _log.error("%s cannot be compacted and stays uncompacted: %s", log.name, fault)
            return
        self._logs.cleaned(log, cleaning.end_offset, bounds.cuts)
        log.must_examine = True
        self._tell(log, cleaning, found.first_dirty, self._clock.monotonic_ns() - began_ns)

    def _drive(self, log: CompactedLog, cleaning: LogCleaning, cuts: int) -> Steps:
        steps = cleaning.steps()
        try:
            step = next(steps)
            while True:
                if isinstance(step, Swap):
                    answer = yield Ask(
                        log.owner,
                        (
                            _SWAP,
                            0,
                            0,
                            log.row,
                            log.incarnation,
                            step.base_offset,
                            step.end_offset,
                            step.source_bytes,
                            cuts,
                            0,
                            0,
                        ),
                    )
                    step = steps.send(bool(answer[FLAGS] & _DONE))
                else:
                    yield Moved(step)
                    step = next(steps)
        except StopIteration:
            return
        finally:
            steps.close()

    def _tell(self, log: CompactedLog, cleaning: LogCleaning, first_dirty: int, took_ns: int) -> None:
        did = cleaning.statistics
        self.rounds += 1
        self.cleaned_bytes += did.read_bytes
        self.freed_bytes += did.read_bytes - did.written_bytes
        _log.info(
            "%s: compacted up to offset %d, dirty from %d: %.1f MiB became %.1f MiB, %d of %d records stay,"
            " %d keys in %.1f MiB, %.1f s",
            log.name,
            cleaning.end_offset,
            first_dirty,
            did.read_bytes / _MIB,
            did.written_bytes / _MIB,
            did.records_kept,
            did.records_read,
            did.keys,
            did.map_bytes / _MIB,
            took_ns / 1e9,
        )
        if did.keyless:
            _log.warning("%s: %d records without a key were dropped", log.name, did.keyless)
