"""Find leader epochs in the logs of this host that the metadata store does not know.

A store that was restored from a backup assigns leader epochs that leaders have used since. Two leaders of one epoch
have two histories under one name: followers cannot tell where they part, and consumers find no end of the epochs above.
So nobody leads before the store has an epoch above all that the logs have.

    own log has a later epoch              looked at each time a log is opened to lead: one comparison
    a log of another slot has a later one  looked at by the first leader after a start, where there are other slots:
                                           reads one small file for each copy, and after a crash the last batch headers
    own log is empty, and a slot that is   the partition was moved there after the backup
    not in sync has records of the topic

Where replicas exist, the first leader after a start has an epoch of its own. So there an epoch that is as high as the
assigned one is a later one, too.

An epoch that is PLAUSIBLE_STEP or more above the assigned one is taken for damage: no checksum covers the epoch of a
batch. It is left as it is, with an error line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from appliance.channels.control_channel import AssignedPartition, LogAhead
from appliance.cluster import TopicPartition
from appliance.errors import ApplianceError, CorruptFile
from appliance.ioproc.peer_copies import compare_with_peers
from appliance.log.copy_end import claimed_end
from appliance.log.file_names import partition_directory_name
from appliance.log.leader_epochs import UNDEFINED_EPOCH, read_epochs
from appliance.log.others_directories import DirectoriesOf
from appliance.log.partition_log import PartitionLog
from appliance.log.partition_metadata import read_topic_id

PLAUSIBLE_STEP: Final = 1_000_000
"""So many leader changes no backup is old: one every 30 seconds makes them in a year."""

_EPOCH_MAX: Final = (1 << 31) - 2

_logger = logging.getLogger(__name__)


def log_ahead(
    assigned: AssignedPartition,
    log: PartitionLog,
    *,
    slot: int,
    slots: int,
    directories_of: DirectoriesOf,
    was_led: bool,
    is_clean: bool,
) -> LogAhead | None:
    """Return what the controller has to know before `slot` leads with `log`, which is open; None: it may lead.

    Args:
        slots: how many slots this host has.
        directories_of: the log directories of a slot.
        was_led: whether anybody has led the partition since the start; then only `log` is looked at.
        is_clean: whether `log` was closed in good order before the start.
    """
    is_first_of_several = not was_led and len(assigned.replicas) > 1
    later = assigned.leader_epoch + (0 if is_first_of_several else 1)
    below = min(assigned.leader_epoch + PLAUSIBLE_STEP, _EPOCH_MAX)
    found = [log.highest_epoch]
    has_elsewhere = False
    holders = []
    if not was_led:
        for peer in range(slots) if slots > 1 else ():
            if peer == slot:
                continue
            for copy, epoch in _copies(assigned, peer, directories_of, is_clean=is_clean):
                holders.append(peer)
                found.append(epoch)
                if not log.log_end_offset and peer not in assigned.isr:
                    has_elsewhere = has_elsewhere or _has_records(copy)
    highest = max((each for each in found if each < below), default=UNDEFINED_EPOCH)
    if highest < later and not has_elsewhere:
        return None
    # As if all of them were in sync, because an old ISR says nothing, and in an epoch that counts those of the logs.
    everybody = msgspec.structs.replace(
        assigned, isr=(slot, *dict.fromkeys(holders)), leader_epoch=max(highest, assigned.leader_epoch)
    )
    longest = compare_with_peers(everybody, log, slot=slot, directories_of=directories_of).longest
    if longest is None and highest < later:
        return None
    return LogAhead(
        topic=assigned.topic,
        topic_id=assigned.topic_id,
        partition=assigned.partition,
        incarnation=assigned.incarnation,
        leader_epoch=assigned.leader_epoch,
        log_epoch=everybody.leader_epoch,
        longest_slot=slot if longest is None else longest[0],
    )


def _copies(
    assigned: AssignedPartition, peer: int, directories_of: DirectoriesOf, *, is_clean: bool
) -> Iterator[tuple[Path, int]]:
    """Yield the copies that a slot has of a partition, and the highest leader epoch of each."""
    name = partition_directory_name(TopicPartition(assigned.topic, assigned.partition))
    for directory in directories_of(peer):
        copy = (
            f"{directory}/{name}"  # text, because mostly nothing is done with the path but to open one file
        )
        epoch = UNDEFINED_EPOCH
        try:
            with suppress(CorruptFile):  # garbage says nothing, as for the copy's owner
                epoch = max((each for each, _ in read_epochs(copy)), default=UNDEFINED_EPOCH)
            if not is_clean and (end := claimed_end(Path(copy))) is not None:
                epoch = max(epoch, end.epoch)
            if epoch != UNDEFINED_EPOCH and read_topic_id(Path(copy)) in (assigned.topic_id, None):
                yield Path(copy), epoch
        except (OSError, ApplianceError) as fault:
            # Whether it has more records is another question, which the comparison asks.
            _logger.warning("%s: its leader epochs cannot be read, and are ignored: %s", copy, fault)


def _has_records(copy: Path) -> bool:
    try:
        end = claimed_end(copy)
    except OSError as fault:
        _logger.warning("%s: its end cannot be read: %s", copy, fault)
        return False
    return end is not None and end.offset > 0
