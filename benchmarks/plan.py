"""What a run does, in which order, and how long it takes.

`ABOUT` holds seconds of one case on one broker, seen on two quick cores, with load and deletion, not a JVM's warm-up. A
run has the true ones (`took_s` in its JSON file): those kept in November 2026 took 1.3 to 1.7 times as long.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.brokers.kafka import Kafka
from benchmarks.brokers.setting import AS_SHIPPED, Setting
from benchmarks.cases.case import Case, Scale

ABOUT: dict[str, tuple[float, float, float]] = {
    "start": (3, 0, 7),
    "idle": (8, 0, 14),
    "idle_connections": (6, 0, 14),
    "start_1000": (7, 0, 20),
    "recovery_1g": (14, 0, 35),
    "recovery_10g": (35, 0, 57),
    "topics_1000": (10, 0, 70),
    "latency": (3.4, 3.4, 3.4),
    "latency_asleep": (3.4, 0, 3.6),
    "latency_client": (3.5, 0, 5),
    "requests_50": (3.4, 3.4, 3.5),
    "requests_64": (3.4, 3.4, 3.5),
    "requests_500": (3.6, 3.6, 3.6),
    "fetches_64": (4.4, 0, 4.4),
    "rate_10k": (6.2, 0, 6.3),
    "throughput_1k": (4, 3.7, 4.5),
    "throughput_100": (5.2, 4.3, 4.7),
    "throughput_1k_16": (5, 0, 4.5),
    "throughput_100_16": (6, 0, 6),
    "throughput_lz4": (6, 0, 12),
    "throughput_zstd": (6, 0, 8),
    "throughput_idempotent": (6.3, 0, 6),
    "backlog": (19, 0, 20),
    "backlog_5g": (85, 0, 85),
    "commits_1": (3.4, 0, 3.7),
    "commits_50": (4, 0, 3.7),
    "transactions_1": (3.7, 0, 4),
    "transactions_100": (3.7, 0, 4),
    "transactions_50": (4, 0, 4.5),
    "transactions_read": (7, 0, 8),
    "rebalance_50": (6, 0, 7),
    "rebalance_50_consumer": (25, 0, 25),
    "groups_10000": (10, 0, 32),
    "latency_client_all": (3.7, 0, 5),
    "failover_1": (3, 0, 22),
    "failover_100": (6, 0, 28),
    "failover_1000": (9, 0, 68),
    "catch_up": (16, 0, 35),
    "lane_latency": (11, 0, 6),
    "lane_frames": (12, 0, 6),
    "lane_throughput_1k": (60, 0, 40),
    "lane_throughput_100": (60, 0, 40),
    "local_reading": (16, 0, 0),
    "backup": (60, 0, 0),
    "scale_partitions": (38, 0, 98),
    "scale_topics": (37, 0, 65),
    "scale_connections": (29, 0, 18),
    "scale_log": (20, 0, 90),
    "scale_slots": (45, 0, 35),
    "scale_workers": (35, 0, 0),
}
"""Case → seconds with ours, the mock, Kafka."""
UNKNOWN = (10.0, 10.0, 15.0)
START_SECONDS = (2.0, 1.0, 10.0)
"""The trial start, and one for each setting."""
MOCK_ROUNDS = 3
REHEARSED_SECONDS_MAX = 15.0
"""Cases that take a broker longer are not rehearsed: they warm it by themselves."""
REHEARSED_ROUNDS_MAX = 4
"""Nor those of more rounds: one cold round of five does not move their median."""
COLUMNS = {"appliance": 0, "pure": 0, "mock": 1, "kafka": 2}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    brokers: tuple[str, ...]
    cases: tuple[Case, ...]
    rounds: int
    scale: Scale
    settings: tuple[Setting, ...] = (AS_SHIPPED,)

    def cases_under(self, setting: Setting) -> list[Case]:
        return [case for case in self.cases if setting.name in case.settings]

    @property
    def held_bytes(self) -> int:
        """Memory that the harness holds: what the largest of the cases is lent."""
        lent = (
            case.lends_bytes * setting.slots
            for setting in self.settings
            for case in self.cases_under(setting)
        )
        return min(self.scale.held_bytes, max(lent, default=0))

    def turns(self, setting: Setting, names: list[str], number: int) -> Iterator[tuple[Case, str]]:
        """Case by case, each over the brokers; who comes first moves on by one each case and each round, so that what
        takes one round has not the same one first each time.
        """
        for place, case in enumerate(self.cases_under(setting)):
            first = (number - 1 + place) % max(len(names), 1)
            if number <= min(case.rounds, setting.rounds):
                for name in (*names[first:], *names[:first]):
                    if name not in case.not_for and not (
                        name == "mock" and _spares_the_mock(setting, number)
                    ):
                        yield case, name

    def rehearsal(self, setting: Setting, names: list[str]) -> Iterator[tuple[Case, str]]:
        """Before the rounds, with a broker that compiles itself: short cases once, so that it knows them by then."""
        name = Kafka.name
        if name not in names:
            return
        for case in self.cases_under(setting):
            seconds = ABOUT.get(case.name, UNKNOWN)[COLUMNS[name]]
            if (
                not case.own
                and name not in case.not_for
                and seconds <= REHEARSED_SECONDS_MAX
                and min(case.rounds, setting.rounds, self.rounds) <= REHEARSED_ROUNDS_MAX
            ):
                yield case, name


def _spares_the_mock(setting: Setting, number: int) -> bool:
    """It writes no file and has no replicas; and a bound in memory hardly varies from round to round."""
    return setting.fsync or setting.slots > 1 or number > MOCK_ROUNDS


def minutes(plan: Plan) -> float:
    """About how long all of it takes."""
    return sum(seconds for _, _, seconds in _seconds(plan)) / 60


def timetable(plan: Plan) -> str:
    """Each case with its turns and its time, under each setting; the sum below."""
    lines = [f"{'case':32}{'turns':>6}{'seconds':>9}"]
    for title, turns, seconds in _seconds(plan):
        lines.append(f"{title:32}{turns:6}{seconds:9.0f}")
    return "\n".join([*lines, f"{'all':32}{'':6}{minutes(plan) * 60:9.0f}  = {minutes(plan):.0f} minutes"])


def _seconds(plan: Plan) -> Iterator[tuple[str, int, float]]:
    yield "trial starts", len(plan.brokers), sum(START_SECONDS[COLUMNS[name]] for name in plan.brokers)
    for setting in plan.settings:
        cases: dict[str, list[float]] = {}
        stays: set[str] = set()
        for number in range(1, plan.rounds + 1):
            for case, name in plan.turns(setting, list(plan.brokers), number):
                cases.setdefault(case.name, []).append(ABOUT.get(case.name, UNKNOWN)[COLUMNS[name]])
                stays |= set() if case.own else {name}
        rehearsed = [
            ABOUT.get(case.name, UNKNOWN)[COLUMNS[name]]
            for case, name in plan.rehearsal(setting, list(plan.brokers))
        ]
        if rehearsed:
            yield f"{setting.name or 'as shipped'}: rehearsal", len(rehearsed), sum(rehearsed)
        if stays:
            warm = plan.scale.warm_up_seconds * setting.warm_up_share if "kafka" in stays else 0.0
            title = f"{setting.name or 'as shipped'}: starts, warm-up"
            yield title, len(stays), warm + sum(START_SECONDS[COLUMNS[name]] for name in stays)
        for case_name, each in cases.items():
            yield setting.key(case_name), len(each), sum(each)
