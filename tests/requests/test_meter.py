"""What clients may use of their quotas, by a clock that the test moves; two network processes share the memory."""

from __future__ import annotations

import math
from typing import Final

import pytest

from appliance.clock import ManualClock
from appliance.cluster import ClientQuotas, QuotaEntity
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.rate_samples import RateSamples, samples_size_bytes
from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.heartbeat import HeartbeatResponse
from appliance.protocol.produce import ProduceResult, encode_produce_response
from appliance.requests.answer import Piece
from appliance.requests.meter import REQUEST_DELAY_MS_MAX, Meter
from appliance.requests.session import Request, Session

PRODUCE, FETCH = int(ApiKey.PRODUCE), int(ApiKey.FETCH)
RATE: Final = 1_000.0
SECRET: Final = b"secret"


class Processes:
    """The meters of two network processes, and whom they have muted for how long."""

    def __init__(self, *quotas: ClientQuotas) -> None:
        self.clock = ManualClock(monotonic_ns=100 * 10**9)
        self.muted: list[tuple[Session, int]] = []
        memory = memoryview(bytearray(samples_size_bytes(2)))
        self.meters = [
            Meter(RateSamples(memory, part), secret=SECRET, clock=self.clock, mute=self._mute)
            for part in range(2)
        ]
        self.set_quotas(*quotas)

    def set_quotas(self, *quotas: ClientQuotas) -> None:
        for meter in self.meters:
            meter.set_quotas(quotas)

    def _mute(self, session: Session, delay_ms: int) -> None:
        self.muted.append((session, delay_ms))

    def produce(self, session: Session, size_bytes: int, *, process: int = 0, acks: int = -1) -> int:
        """Returns for how long the answer says that the client is throttled, or acks=0 is muted."""
        meter, before = self.meters[process], len(self.muted)
        meter.arrived(session, PRODUCE, size_bytes)
        frame = encode_produce_response(8, 1, [ProduceResult("t", 0, 0, 0)])
        answer: list[Piece] = [frame] if acks else []
        meter.answered(request(session, PRODUCE, 8), answer)
        delay_ms = self.muted[-1][1] if len(self.muted) > before else 0
        if acks:
            (patched,) = answer
            assert isinstance(patched, bytes)
            assert int.from_bytes(patched[-4:], "big") == delay_ms
            assert patched[:-4] == frame[:-4]
        return delay_ms

    def fetch(self, session: Session, size_bytes: int, *, process: int = 0) -> int:
        return self.meters[process].fetch_delay_ms(session, size_bytes)

    def heartbeat(self, session: Session, work_ms: int, *, process: int = 0) -> int:
        meter = self.meters[process]
        meter.arrived(session, int(ApiKey.HEARTBEAT), 100)
        meter.served(session, work_ms * 10**6)
        answer: list[Piece] = [messages.encode_response(ApiKey.HEARTBEAT, 4, HeartbeatResponse(0), 1)]
        meter.answered(request(session, int(ApiKey.HEARTBEAT), 4), answer)
        (frame,) = answer
        assert isinstance(frame, bytes)
        _, response = messages.decode_response(ApiKey.HEARTBEAT, 4, memoryview(frame))
        throttle_ms: int = response.throttle_time_ms
        return throttle_ms


def session(user: str = "u", client_id: str | None = "c") -> Session:
    made = Session(
        connection_id=1, number=1, slot=0, listener="L", peer_host="127.0.0.1", peer_port=1, now_ns=0
    )
    made.principal = f"User:{user}"
    made.client_id = client_id
    return made


def request(of: Session, api_key: int, version: int) -> Request:
    pool = BufferPool(memoryview(bytearray(1 << 16)), reserve_bytes=0, discard=lambda *_: None)
    block = pool.take(16)
    assert block is not None
    return Request(of, block, api_key, version, 1)


def quota(key: str, value: float, *, user: str | None = None, client_id: str | None = None) -> ClientQuotas:
    return ClientQuotas(QuotaEntity(user, client_id), {key: value})


PRODUCER: Final = quota("producer_byte_rate", RATE, user="u")
CONSUMER: Final = quota("consumer_byte_rate", RATE, user="u")


def test_a_producer_is_throttled_for_as_long_as_it_takes_to_be_within_its_quota() -> None:
    processes = Processes(PRODUCER)
    producer = session()
    assert processes.produce(producer, 10_000) == 0
    assert processes.produce(producer, 500) == 500
    assert processes.produce(producer, 1_000) == 1_500
    processes.clock.advance(1_500)
    assert processes.produce(producer, 0) == 1_000  # the window is 10.5 s long now
    processes.clock.advance(11_000)
    assert processes.produce(producer, 10_000) == 0


def test_all_processes_and_all_sessions_of_a_user_share_one_budget() -> None:
    processes = Processes(PRODUCER)
    assert processes.produce(session(), 6_000, process=0) == 0
    assert processes.produce(session(client_id="other"), 6_000, process=1) == 2_000
    assert processes.produce(session(), 0, process=0) == 2_000
    assert processes.produce(session(user="another"), 10**9, process=1) == 0


@pytest.mark.parametrize("process", [0, 1])
def test_over_a_long_time_a_client_gets_its_rate(process: int) -> None:
    processes = Processes(PRODUCER, CONSUMER)
    for use, wanted in ((processes.produce, 700), (processes.fetch, 1_300)):
        client, began_ns, got = session(), processes.clock.monotonic_ns(), 0
        while (elapsed_ms := (processes.clock.monotonic_ns() - began_ns) // 10**6) < 110_000:
            delay_ms = use(client, wanted, process=process)
            if use == processes.produce or not delay_ms:
                got += wanted
            processes.clock.advance(max(delay_ms, 3))
        assert math.isclose(got / elapsed_ms * 1_000, RATE, rel_tol=0.1)


def test_a_fetch_over_the_quota_is_not_counted() -> None:
    processes = Processes(CONSUMER)
    consumer = session()
    assert processes.meters[0].fetch_max_bytes(consumer) == 10_000
    assert processes.fetch(consumer, 9_000) == 0
    assert [processes.fetch(consumer, 2_000) for _ in range(3)] == [1_000] * 3
    assert processes.fetch(consumer, 1_000) == 0
    assert processes.meters[0].fetch_max_bytes(session(user="another")) == 0


def test_a_batch_that_is_larger_than_the_quota_allows_in_all_its_window_comes_through() -> None:
    processes = Processes(CONSUMER)
    consumer = session()
    assert processes.fetch(consumer, 50_000) == 0
    assert processes.fetch(consumer, 50_000, process=1) == 90_000
    processes.clock.advance(11_000)
    assert processes.fetch(consumer, 50_000) == 0


def test_work_is_throttled_for_a_second_at_most_and_not_for_acks_0() -> None:
    processes = Processes(quota("request_percentage", 10, user="u"))
    client = session()
    assert processes.heartbeat(client, 1_000) == 0
    assert processes.heartbeat(client, 50) == 500
    assert processes.heartbeat(client, 9_000, process=1) == REQUEST_DELAY_MS_MAX
    assert processes.fetch(client, 1) == REQUEST_DELAY_MS_MAX
    assert processes.produce(client, 1, acks=0) == 0
    assert processes.produce(client, 1) == REQUEST_DELAY_MS_MAX


def test_a_producer_is_muted_before_its_answer_is_there_and_for_what_others_used() -> None:
    processes = Processes(PRODUCER)
    producer, other = session(), session(client_id="other")
    for size_bytes in (9_000, 2_000):
        processes.meters[0].arrived(producer, PRODUCE, size_bytes)
    assert processes.muted == [(producer, 1_000)]
    assert processes.meters[1].remaining_ms(other) == 1_000
    processes.clock.advance(11_000)
    assert processes.meters[1].remaining_ms(other) == 0


def test_a_producer_without_answers_is_muted_too() -> None:
    processes = Processes(PRODUCER)
    assert processes.produce(session(), 11_000, acks=0) == 1_000


def test_another_quota_counts_at_once_and_what_was_used_stays() -> None:
    processes = Processes(PRODUCER)
    producer = session()
    assert processes.produce(producer, 15_000) == 5_000
    processes.set_quotas(quota("producer_byte_rate", 2 * RATE, user="u"))
    assert processes.produce(producer, 0) == 0
    processes.set_quotas(quota("producer_byte_rate", RATE / 2, user="u"))
    assert processes.produce(producer, 0) == 20_000
    processes.set_quotas(CONSUMER)
    assert processes.produce(producer, 10**9) == 0


def test_the_wall_clock_may_jump() -> None:
    processes = Processes(PRODUCER)
    producer = session()
    assert processes.produce(producer, 10_000) == 0
    for jump_ms in (-(10**12), 10**12):
        processes.clock.set_wall(processes.clock.now_ms() + jump_ms)
        assert processes.produce(producer, 100) > 0


def test_a_client_that_says_ever_other_names_makes_nothing_grow() -> None:
    processes = Processes(quota("producer_byte_rate", RATE, client_id=""))
    known = session(client_id="known")
    assert processes.produce(known, 10_100) == 100
    for number in range(25_000):
        processes.meters[0].arrived(session(client_id=f"c{number}"), PRODUCE, 10)
    statistics = processes.meters[0].statistics()
    assert statistics["clients"] <= 10_000
    # All of them within a second: the table is full, and nobody is throttled for it.
    assert statistics["evicted"] > 0
    assert processes.produce(session(client_id="new"), 10) == 0


def test_the_least_rate_gives_a_delay_that_fits_its_field() -> None:
    processes = Processes(quota("producer_byte_rate", 1, user="u"))
    assert processes.produce(session(), 2**31) == 2**31 - 1
