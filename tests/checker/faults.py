"""What is done to the processes of an appliance. Each fault says what it did, and leaves nothing stopped behind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from appliance.cluster import INTERNAL_TOPICS
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from appliance.protocol.apis.elect_leaders import ElectLeadersRequest
from tests.checker import disk_damage
from tests.checker.transaction_workload import Moments
from tests.support.broker import Appliance, ProcessRow
from tests.support.stepped_clock import SteppedClock
from tests.support.wire import ConnectionEnded, WireSocket
from tests.system.raw import ask

PAUSE_MAX_S: Final = 20.0
IN_SYNC_S: Final = 30.0
SETTLE_S: Final = 30.0
WORKERS_MAX: Final = 3
MOMENT_S: Final = 5.0
_VICTIMS: Final = ("coordinator", "coordinator", "controller", "ioproc", "ioproc", "replica", "netproc")
VERIFY_S: Final = 600.0
"""For a run of `log verify` over all copies, gigabytes after an hour, on a machine that does other work too."""
LAG_S: Final = 1.0
"""For which followers are kept from copying: they are not yet out of sync."""

Fault = Callable[[Appliance, random.Random, float], str]
"""An appliance, a source of chance, the longest pause in seconds → what was done."""


def kill_one(broker: Appliance, chance: random.Random, _: float) -> str:
    """SIGKILL for one process, the supervisor excepted."""
    row = chance.choice([row for row in _living(broker) if row.role != "supervisor"])
    _kill([row.pid])
    return f"killed {row.role}"


def kill_worker(broker: Appliance, chance: random.Random, _: float) -> str:
    """SIGKILL for one that owns logs: half of all faults should hit where records are."""
    owners = [row for row in _living(broker) if row.role.split()[0] in ("ioproc", "replica")]
    if not owners:
        return "found no worker to kill"
    row = chance.choice(owners)
    _kill([row.pid])
    return f"killed {row.role}"


def pause_one(broker: Appliance, chance: random.Random, pause_max_s: float) -> str:
    """SIGSTOP, and SIGCONT after a while."""
    row = chance.choice([row for row in _living(broker) if row.role != "supervisor"])
    pause_s = chance.uniform(0.1, pause_max_s)
    _signal(row.pid, signal.SIGSTOP)
    try:
        time.sleep(pause_s)
    finally:
        _signal(row.pid, signal.SIGCONT)
    return f"stopped {row.role} for {pause_s:.1f} s"


def kill_slot(broker: Appliance, chance: random.Random, _: float) -> str:
    """SIGKILL for all processes of one slot at once."""
    slot = chance.randrange(broker.slots)
    _kill_slot(broker, slot)
    return f"killed slot {slot}"


def kill_two_slots(broker: Appliance, chance: random.Random, pause_max_s: float) -> str:
    """One slot after the other, the first one maybe not back yet."""
    first, second = chance.sample(range(broker.slots), 2)
    _kill_slot(broker, first)
    pause_s = chance.uniform(0.0, min(2.0, pause_max_s))
    time.sleep(pause_s)
    _kill_slot(broker, second)
    return f"killed slot {first}, and slot {second} {pause_s:.1f} s later"


def kill_slot_past_a_sleeper(broker: Appliance, chance: random.Random, pause_max_s: float) -> str:
    """One slot's replica process stands still while another slot dies: it hears late of who leads now."""
    sleeper, killed = chance.sample(range(broker.slots), 2)
    row = next((row for row in _living(broker) if row.role == f"replica {sleeper}"), None)
    if row is None:
        return f"found no replica {sleeper} to stop"
    pause_s = chance.uniform(0.1, min(5.0, pause_max_s))
    _signal(row.pid, signal.SIGSTOP)
    try:
        _kill_slot(broker, killed)
        time.sleep(pause_s)
    finally:
        _signal(row.pid, signal.SIGCONT)
    return f"killed slot {killed} while replica {sleeper} was stopped, for {pause_s:.1f} s"


def kill_everything(broker: Appliance, _chance: random.Random, _: float) -> str:
    """SIGKILL for every process at once, and a start."""
    broker.kill()
    broker.start(60)
    return "killed everything, and started it"


def set_clock(clock: SteppedClock) -> Fault:
    """Set the wall clock of all processes by hours."""

    def set_clock(_broker: Appliance, chance: random.Random, _: float) -> str:
        hours = chance.choice((-5, -2, 0, 1, 4))
        clock.set_ahead(hours * 3_600 + chance.uniform(-60, 60))
        return f"set the clock {hours} h ahead"

    return set_clock


def restart(broker: Appliance, _chance: random.Random, _: float) -> str:
    """A clean stop, and a start."""
    _stop(broker)
    broker.start(60)
    return "stopped, and started"


def change_workers(broker: Appliance, chance: random.Random, _: float) -> str:
    """A stop, or SIGKILL for everything, and a start with another number of workers: their files change hands."""
    how = chance.choice((_stop, Appliance.kill))
    how(broker)
    workers = chance.randint(1, WORKERS_MAX)
    broker.set_option("io.workers", workers)
    broker.start(60)
    return f"{'killed' if how is Appliance.kill else 'stopped'} everything, and started it with {workers} workers"


def lose_log_directory(broker: Appliance, chance: random.Random, pause_max_s: float) -> str:
    """Removes all that a slot has on its disk, lets the others go on for a while, and starts everything anew."""
    if not _all_in_sync(broker):
        return "removed nothing: it might have been the last copy"
    slot = chance.randrange(broker.slots)
    shutil.rmtree(broker.data_dir / f"slot-{slot}", ignore_errors=True)
    pause_s = chance.uniform(0.5, 0.5 + pause_max_s)
    time.sleep(pause_s)
    _stop(broker)
    broker.start(60)
    return f"removed the log directory of slot {slot}, and started everything anew {pause_s:.1f} s later"


def swap_disk(broker: Appliance, chance: random.Random, _: float) -> str:
    """While nothing runs, a slot's disk is replaced by an empty one."""

    def lose(directory: Path) -> str:
        shutil.rmtree(directory)
        return "the log directory"

    return _lose_while_stopped(broker, chance, lose)


def swap_for_remnants(broker: Appliance, chance: random.Random, _: float) -> str:
    """As `swap_disk`, but the newest segment of each copy is left, as one that was begun while it was removed."""

    def lose(directory: Path) -> str:
        newest = [max(copy.glob("*.log"), default=None) for copy in directory.iterdir() if copy.is_dir()]
        kept = {path: path.read_bytes() for path in newest if path is not None}
        shutil.rmtree(directory)
        for path, content in kept.items():
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
        return "all but the newest segments"

    return _lose_while_stopped(broker, chance, lose)


def lose_files(broker: Appliance, chance: random.Random, _: float) -> str:
    """Of each of a slot's copies its oldest segments go, its newest ones, all of them, or its directory, or nothing."""

    def lose(directory: Path) -> str:
        count = 0
        for copy in sorted(each for each in directory.iterdir() if each.is_dir()):
            segments = sorted(copy.glob("*.log"))
            some = chance.randint(1, max(1, len(segments) - 1))
            what = chance.choice(("nothing", "oldest", "newest", "segments", "directory"))
            gone = {"oldest": segments[:some], "newest": segments[-some:], "segments": segments}.get(what, [])
            for path in gone:
                path.unlink()
            if what == "directory":
                shutil.rmtree(copy)
            count += what != "nothing"
        return f"files of {count} copies"

    return _lose_while_stopped(broker, chance, lose)


def tear_one_copy(broker: Appliance, chance: random.Random, _: float) -> str:
    """SIGKILL for everything; the ends of the copies of one slot, or two of three, are torn; and a start."""
    return _damage_copies(broker, chance, "tore", lambda copy: disk_damage.tear(copy, chance))


def drop_page_cache(broker: Appliance, chance: random.Random, _: float) -> str:
    """SIGKILL for everything; one slot, or two of three, lose what was not forced to their disks; and a start."""
    return _damage_copies(
        broker, chance, "dropped the page cache of", lambda copy: disk_damage.drop_page_cache(copy, chance)
    )


def flip_bit_anywhere(compacted: Collection[str]) -> Fault:
    """SIGKILL for everything; a bit is flipped in copies of one slot, or two of three, in any segment; and a start.

    A start looks at nothing below the recovery point. Where a bit was flipped there, `log verify --repair` runs before
    it; else such bits would gather, and one day no copy of a batch would be whole. In `compacted` topics, and in
    Kafka's own, bits are flipped above it only.
    """

    def flip_bit_anywhere(broker: Appliance, chance: random.Random, _: float) -> str:
        below = False
        goes_below = chance.random() < 0.5

        def flip(copy: Path) -> None:
            nonlocal below
            topic = copy.name.rpartition("-")[0]
            is_compacted = topic in compacted or topic in INTERNAL_TOPICS
            point = disk_damage.recovery_point(copy)
            limit = 0 if goes_below and not is_compacted else point
            disk_damage.flip_a_bit(copy, chance, is_compacted=is_compacted, beyond=limit)
            below |= limit < point

        return _damage_copies(broker, chance, "flipped bits in", flip, repairs=lambda: below)

    return flip_bit_anywhere


def _damage_copies(
    broker: Appliance,
    chance: random.Random,
    what: str,
    damage: Callable[[Path], None],
    *,
    repairs: Callable[[], bool] = lambda: False,
) -> str:
    """While everything lies dead `damage` is done to most copies of one slot, or of two; one slot's stay whole."""
    if not _all_in_sync(broker):
        return "damaged nothing: it might have been the last copy"
    slots = chance.sample(range(broker.slots), chance.randint(1, broker.slots - 1))
    broker.kill()
    count = 0
    for slot in slots:
        for copy in disk_damage.copies_in(broker.data_dir / f"slot-{slot}"):
            if chance.random() < disk_damage.DAMAGED_SHARE:
                damage(copy)
                count += 1
    repaired = ""
    if repairs():
        told = broker.run("log", "verify", "--repair", "--data-dir", str(broker.data_dir), timeout_s=VERIFY_S)
        assert told.returncode == 0, told.stdout + told.stderr
        repaired = f", repaired {told.stdout.count(' repaired from slot ')} batches"
    broker.start(60)
    return f"killed everything, {what} {count} copies of slots {slots}{repaired}, and started it"


def cut_back(burst: Callable[[], None]) -> Fault:
    """Of one slot's logs their ends are cut, and then it leads again.

    No follower copies while its leaders are written a `burst` that nobody else will have; it dies, and what it has too
    much is cut off when it follows. Then whoever was a leader at first becomes it again: with indexes, behind whose
    ends stands what was there before.
    """

    def cut_back(broker: Appliance, chance: random.Random, _: float) -> str:
        slot = chance.randrange(broker.slots)
        followers = [row.pid for row in _living(broker) if row.role.split()[0] == "replica"]
        for pid in followers:
            _signal(pid, signal.SIGSTOP)
        try:
            writing = threading.Thread(target=burst)
            writing.start()
            time.sleep(LAG_S)
            _kill_slot(broker, slot)
        finally:
            for pid in followers:
                _signal(pid, signal.SIGCONT)
        writing.join()
        is_whole = _all_in_sync(broker)
        return f"cut what only slot {slot} had; {_elect(broker) if is_whole else 'not all are in sync'}"

    return cut_back


def kill_at_moment(moments: Moments) -> Fault:
    """SIGKILL for one process, a slot or everything within milliseconds of a step of some transaction.

    The steps are named by what producers know (`Moments.NAMES`), and the delay spreads kills over what follows one: the
    record of the next state, the permit, the append, each marker, the record that completes.
    """

    def kill_at_moment(broker: Appliance, chance: random.Random, _: float) -> str:
        moment = chance.choice(moments.NAMES)
        victims = (*_VICTIMS, "slot", "everything")
        role = chance.choice(victims)
        delay_s = chance.choice((0.0, 0.002, 0.01, 0.04)) * chance.random()
        pids = [row.pid for row in _living(broker) if role in (row.role, row.role.split()[0])]
        if role in _VICTIMS and not pids:
            return f"found no {role} to kill"
        if not moments.wait_for(moment, MOMENT_S):
            return f"no transaction {moment} within {MOMENT_S:.0f} s"
        time.sleep(delay_s)
        if role == "everything":
            broker.kill()
            broker.start(60)
        elif role == "slot":
            _kill_slot(broker, chance.randrange(broker.slots))
        else:
            _kill([chance.choice(pids)])
        return f"killed {role} {delay_s * 1000:.1f} ms after a transaction {moment}"

    return kill_at_moment


def elect(broker: Appliance, _chance: random.Random, _: float) -> str:
    """The preferred leaders lead again."""
    return _elect(broker)


def reassign(topic: str) -> Fault:
    """Partitions change their replicas: some of them, in another order, then all."""

    def reassign(broker: Appliance, chance: random.Random, _: float) -> str:
        try:
            partitions = len(_admin(broker).list_topics(topic, timeout=10).topics[topic].partitions)
        except KafkaException as error:
            return f"found no partitions of {topic}: {error}"
        for fewest in (2, broker.slots):
            wanted = tuple(
                ReassignablePartition(
                    number, tuple(chance.sample(range(broker.slots), chance.randint(fewest, broker.slots)))
                )
                for number in range(partitions)
            )
            request = AlterPartitionReassignmentsRequest((ReassignableTopic(topic, wanted),))
            try:
                with WireSocket(broker.port, timeout_s=30) as connection:
                    ask(connection, ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
            except (OSError, ConnectionEnded) as error:
                return f"gave no replicas of {topic} other slots: {error}"
            if not _all_in_sync(broker):
                return f"gave replicas of {topic} other slots; not all are in sync"
        return f"gave replicas of {topic} other slots; {_elect(broker)}"

    return reassign


def delete_records(topic: str) -> Fault:
    """DeleteRecords of up to half of what each partition has."""

    def delete_records(broker: Appliance, chance: random.Random, _: float) -> str:
        admin = _admin(broker)
        asking = Consumer({"bootstrap.servers": _addresses(broker), "group.id": "not used", "log_level": 0})
        places = []
        try:
            for number in admin.list_topics(topic, timeout=10).topics[topic].partitions:
                limits = asking.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
                assert limits is not None
                start, end = limits
                before = start + int((end - start) * chance.uniform(0.0, 0.5))
                places.append(TopicPartition(topic, number, before))
            for answer in admin.delete_records(places, request_timeout=10).values():
                answer.result()
        except KafkaException as error:
            return f"records of {topic} are not all deleted: {error}"
        finally:
            asking.close()
        told = [str(place.offset) for place in places]
        return f"deleted the records of {topic} before {', '.join(told)}"

    return delete_records


def faults_for(
    slots: int,
    *,
    workers: int = 1,
    burst: Callable[[], None],
    topic: str,
    trimmed: str,
    compacted: str,
    moments: Moments | None = None,
) -> list[Fault]:
    """Each as often as it shall come.

    Args:
        burst: writes to `topic` what only its leaders acknowledge.
        trimmed: the topic that DeleteRecords may shorten.
        compacted: the topic that is compacted.
        moments: of transactions, where some run.
    """
    common: list[Fault] = [kill_one, kill_one, kill_worker, kill_worker, pause_one, kill_everything, restart]
    common += [delete_records(trimmed)] * 2
    if moments is not None:
        common += [kill_at_moment(moments)] * (6 if slots < 2 else 12)
    if workers > 1:
        common += [change_workers, kill_worker]
    if slots < 2:
        return common
    return [
        *common,
        kill_slot,
        kill_slot,
        kill_two_slots,
        kill_slot_past_a_sleeper,
        elect,
        *([cut_back(burst)] * 3),
        *([reassign(topic)] if slots > 2 else []),
        *([lose_log_directory, swap_disk, swap_for_remnants, lose_files] if slots > 2 else []),
        *([tear_one_copy, drop_page_cache, flip_bit_anywhere((compacted,))] if slots > 2 else []),
    ]


def _addresses(broker: Appliance) -> str:
    return ",".join(f"127.0.0.1:{broker.port + slot}" for slot in range(broker.slots))


def _admin(broker: Appliance) -> AdminClient:
    return AdminClient({"bootstrap.servers": _addresses(broker), "log_level": 0})


def _elect(broker: Appliance) -> str:
    try:
        with WireSocket(broker.port, timeout_s=30) as connection:
            answer = ask(connection, ApiKey.ELECT_LEADERS, ElectLeadersRequest(None))
    except (OSError, ConnectionEnded) as error:
        return f"no election: {error}"
    results = [one for each in answer.replica_election_results for one in each.partition_result]
    moved = sum(not one.error_code for one in results)
    return f"elected {moved} preferred leaders"


def _lose_while_stopped(broker: Appliance, chance: random.Random, lose: Callable[[Path], str]) -> str:
    """`lose` takes a slot's log directory something away, and tells what, while nothing runs."""
    if not _all_in_sync(broker):
        return "removed nothing: it might have been the last copy"
    slot = chance.randrange(broker.slots)
    _stop(broker)
    what = lose(broker.data_dir / f"slot-{slot}")
    broker.start(60)
    return f"removed {what} of slot {slot} while everything was stopped"


def _kill_slot(broker: Appliance, slot: int) -> None:
    halves = []
    for row in _living(broker):
        kind, _, place = row.role.partition(" ")
        if kind in ("ioproc", "replica") and place.partition(".")[0] == str(slot):
            halves.append(row.pid)
    _kill(halves)


def _kill(pids: list[int]) -> None:
    """SIGKILL for all of them at once; returns when they have ended."""
    for pid in pids:
        _signal(pid, signal.SIGKILL)
    _until(lambda: not any(map(_lives, pids)))


def _stop(broker: Appliance) -> None:
    """A clean stop. One beside which somebody lies dead, and nobody has noticed, is none, and says so by its code."""
    _until(broker.is_whole)
    broker.stop()


def _lives(pid: int) -> bool:
    try:
        return pid != 0 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _until(is_true: Callable[[], bool]) -> None:
    """Waits for it, and no longer than SETTLE_S."""
    deadline = time.monotonic() + SETTLE_S
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)


def _all_in_sync(broker: Appliance) -> bool:
    """Waits for it, and no longer than IN_SYNC_S."""
    admin = _admin(broker)
    deadline = time.monotonic() + IN_SYNC_S
    while time.monotonic() < deadline:
        topics = admin.list_topics(timeout=10).topics.values()
        partitions = [each for topic in topics for each in topic.partitions.values()]
        if all(len(each.isrs) == len(each.replicas) for each in partitions):
            return True
        time.sleep(0.1)
    return False


def _living(broker: Appliance) -> list[ProcessRow]:
    """Without those that are between two lives."""
    return [row for row in broker.processes() if row.pid]


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it died by itself, or of the fault before
        os.kill(pid, number)
