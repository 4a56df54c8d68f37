"""The real acceptor under the real supervisor, with network processes that echo."""

from __future__ import annotations

import os
import resource
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

import psutil
import pytest

from tests.control.conftest import StartInstance
from tests.control.instances import Instance, kill_and_wait

PATIENCE_S = 30.0
PROBE_S = 0.01
"""Between two connections that only ask whether somebody has come: thirty seconds of them are not too many."""

Connect = Callable[[], socket.socket]


@pytest.fixture
def start(start_instance: StartInstance) -> Callable[..., Instance]:
    def started(*arguments: str) -> Instance:
        instance = start_instance("acceptor=real", "netproc=echo", *arguments)
        instance.wait_ready()
        return instance

    return started


def connect(instance: Instance, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", instance.port), PATIENCE_S, source_address=(source, 0))


def ask(sock: socket.socket) -> str:
    """Who serves the connection: `netproc0.g1`; "" when it was closed."""
    try:
        sock.sendall(b"hello")
        answer = sock.recv(100)
    except ConnectionError:
        return ""
    name, _, echoed = answer.partition(b":")
    assert echoed == (b"hello" if answer else b"")
    return name.decode()


def pid(instance: Instance, title: str) -> int:
    return instance.children()[title].pid


def kill(instance: Instance, *titles: str) -> None:
    children = instance.children()
    kill_and_wait(*(children[title].pid for title in titles))


def wait_until_it_holds_no_connection(acceptor: psutil.Process) -> None:
    """It closes its copy of a connection after its network process may have answered, and the client gone, already."""
    while any(held.status != psutil.CONN_LISTEN for held in acceptor.net_connections("tcp")):
        os.sched_yield()


def wait_joined(instance: Instance, stack: ExitStack) -> dict[str, list[socket.socket]]:
    """Connects until both network processes serve somebody: one that is late is waited for, but not for ever.

    What each serves, which is the same number: the late one gets all until it has as many.
    """
    served: dict[str, list[socket.socket]] = {"netproc0.g1": [], "netproc1.g1": []}
    while not all(served.values()) or len(set(map(len, served.values()))) > 1:
        sock = stack.enter_context(connect(instance))
        served[ask(sock)].append(sock)
        if not all(served.values()):
            time.sleep(PROBE_S)
    return served


def wait_known(instance: Instance) -> None:
    """The same with no more than two connections at a time, none of which stays."""
    with connect(instance) as held:
        first = ask(held)
        while True:
            with connect(instance) as probe:
                if ask(probe) not in ("", first):
                    return
            time.sleep(PROBE_S)


def ask_until_served(instance: Instance, stack: ExitStack) -> str:
    """Who serves the first connection that is not refused."""
    while True:
        sock = connect(instance)
        if name := ask(sock):
            stack.enter_context(sock)
            return name
        sock.close()
        time.sleep(PROBE_S)


def test_each_connection_goes_where_fewest_are(start: Callable[..., Instance]) -> None:
    instance = start()
    with ExitStack() as stack:
        served = wait_joined(instance, stack)
        for _ in range(20):
            assert {ask(stack.enter_context(connect(instance))) for _ in range(2)} == set(served)


def test_next_connection_goes_where_fewest_are_left(start: Callable[..., Instance]) -> None:
    instance = start("max.connections=10")
    with ExitStack() as stack:
        wait_known(instance)
        served: dict[str, list[socket.socket]] = {"netproc0.g1": [], "netproc1.g1": []}
        while sum(map(len, served.values())) < 10:
            sock = stack.enter_context(connect(instance))
            if name := ask(sock):
                served[name].append(sock)
        fewest = min(served, key=lambda name: len(served[name]))
        for sock in served[fewest]:
            sock.close()
        # Nobody is let in before the acceptor has heard of one who left, so each goes where that one was.
        for _ in served[fewest]:
            assert ask_until_served(instance, stack) == fewest
        assert served[fewest]


def test_connection_over_the_maximum_is_closed_at_once_and_the_others_stay(
    start: Callable[..., Instance],
) -> None:
    instance = start("max.connections=10")
    began_s = time.monotonic()
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(instance)) for _ in range(10)]
        assert all(map(ask, socks))
        for _ in range(20):
            with connect(instance) as surplus:
                assert ask(surplus) == ""
        assert all(map(ask, socks))
        socks[0].close()
        while True:
            with connect(instance) as sock:
                if ask(sock):
                    break
    instance.stop()
    refusals = [line for line in instance.errors().splitlines() if "max.connections = 10 are held" in line]
    # One line in a second, not one for each of the 20 and more that were refused.
    assert 1 <= len(refusals) <= 1 + (time.monotonic() - began_s)


def test_one_address_cannot_take_the_places_of_others(start: Callable[..., Instance]) -> None:
    instance = start("max.connections.per.ip=3")
    with ExitStack() as stack:
        mine = [stack.enter_context(connect(instance, "127.0.0.2")) for _ in range(3)]
        assert all(map(ask, mine))
        with connect(instance, "127.0.0.2") as fourth:
            assert ask(fourth) == ""
        with connect(instance, "127.0.0.3") as other:
            assert ask(other)


def test_killed_acceptor_disturbs_no_connection_and_refuses_nobody(start: Callable[..., Instance]) -> None:
    instance = start()
    with ExitStack() as stack:
        before = [stack.enter_context(connect(instance)) for _ in range(6)]
        served = list(map(ask, before))
        for _ in range(3):
            kill(instance, "acceptor")
            assert ask(stack.enter_context(connect(instance)))
        assert list(map(ask, before)) == served


def test_restarted_acceptor_knows_loads_and_addresses_again(start: Callable[..., Instance]) -> None:
    instance = start("max.connections.per.ip=6")
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(instance, "127.0.0.2")) for _ in range(6)]
        by_name: dict[str, list[socket.socket]] = {}
        for sock in socks:
            by_name.setdefault(ask(sock), []).append(sock)
        kill(instance, "acceptor")
        # The hello of one may come long before the other's, and only then is it known what that one holds.
        hosts = (f"127.0.{net}.{number}" for net in range(1, 255) for number in range(1, 255))
        unheard = set(by_name)
        while unheard:
            unheard.discard(ask(stack.enter_context(connect(instance, next(hosts)))))
            time.sleep(PROBE_S)
        with connect(instance, "127.0.0.2") as seventh:
            assert ask(seventh) == ""


def test_who_connects_while_no_network_process_lives_is_served_by_the_next_life(
    start: Callable[..., Instance],
) -> None:
    instance = start()
    kill(instance, "netproc 0", "netproc 1")
    with ExitStack() as stack:
        names = [ask(stack.enter_context(connect(instance))) for _ in range(10)]
    assert set(names) <= {"netproc0.g2", "netproc1.g2"}


def test_connections_of_a_dead_network_process_are_off_the_books(start: Callable[..., Instance]) -> None:
    instance = start("max.connections=8")
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(instance)) for _ in range(8)]
        assert all(map(ask, socks))
        kill(instance, "netproc 0", "netproc 1")
        for sock in socks:
            assert ask(sock) == ""
        again = [stack.enter_context(connect(instance)) for _ in range(8)]
        assert all(map(ask, again))


def test_burst_of_connections_is_served_whole(start: Callable[..., Instance]) -> None:
    instance = start()
    with ExitStack() as stack:
        wait_joined(instance, stack)
        socks = [stack.enter_context(connect(instance)) for _ in range(900)]
        counts = Counter(map(ask, socks))
        assert set(counts) == {"netproc0.g1", "netproc1.g1"}
        assert counts.total() == 900
        # One whose channel was full was passed over: whoever comes next makes up for it, one by one.
        (fewest, few), (_, many) = sorted(counts.items(), key=lambda item: item[1])
        later = [ask(stack.enter_context(connect(instance))) for _ in range(many - few)]
        assert set(later) <= {fewest}
        even = [ask(stack.enter_context(connect(instance))) for _ in range(2)]
        assert len(set(even)) == 2


def test_network_process_that_takes_nothing_is_passed_over_and_made_up_for(
    start: Callable[..., Instance],
) -> None:
    instance = start()
    asleep = instance.children()["netproc 1"]
    with ExitStack() as stack:
        wait_joined(instance, stack)  # one that sleeps before its hello is heard is given nothing at all
        asleep.suspend()
        stack.callback(asleep.resume)
        socks = [stack.enter_context(connect(instance)) for _ in range(900)]
        served = 0
        ready = select.poll()
        by_descriptor = {sock.fileno(): sock for sock in socks}
        for descriptor, sock in by_descriptor.items():
            sock.sendall(b"hello")
            ready.register(descriptor, select.POLLIN)
        while served <= 450:  # more than the even share: what the channel could not take went to the other
            answered = ready.poll(PATIENCE_S * 1000)
            assert answered, f"{served} of 900 are served while one network process sleeps"
            for descriptor, _ in answered:
                assert by_descriptor.pop(descriptor).recv(100) == b"netproc0.g1:hello"
                ready.unregister(descriptor)
                served += 1
        asleep.resume()
        names = Counter({"netproc0.g1": served})
        for sock in by_descriptor.values():
            names[sock.recv(100).partition(b":")[0].decode()] += 1
        assert names.total() == 900
        later = [
            ask(stack.enter_context(connect(instance)))
            for _ in range(names["netproc0.g1"] - names["netproc1.g1"])
        ]
        assert set(later) == {"netproc1.g1"}


def test_connection_reset_before_it_is_accepted_costs_nothing(start: Callable[..., Instance]) -> None:
    instance = start()
    for _ in range(50):
        sock = connect(instance)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    with connect(instance) as sock:
        assert ask(sock)
    assert set(instance.children()) >= {"acceptor", "netproc 0", "netproc 1"}
    instance.stop()
    assert "was killed" not in instance.errors()
    assert "exited with" not in instance.errors()


def test_acceptor_out_of_descriptors_closes_and_goes_on(start: Callable[..., Instance]) -> None:
    instance = start()
    wait_known(instance)  # who joins later brings a descriptor
    acceptor = instance.children()["acceptor"]
    wait_until_it_holds_no_connection(acceptor)
    held = {int(entry) for entry in os.listdir(f"/proc/{acceptor.pid}/fd")}
    lowest_free = min(set(range(len(held) + 1)) - held)
    soft, hard = resource.prlimit(acceptor.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(acceptor.pid, resource.RLIMIT_NOFILE, (lowest_free, hard))
    for _ in range(5):
        with connect(instance) as sock:
            assert ask(sock) == ""
    resource.prlimit(acceptor.pid, resource.RLIMIT_NOFILE, (soft, hard))
    with connect(instance) as sock:
        assert ask(sock)
    wait_until_it_holds_no_connection(acceptor)
    assert acceptor.num_fds() == len(held)
    instance.stop()
    assert "cannot accept a connection: Too many open files" in instance.errors()


def test_port_is_closed_once_the_appliance_stopped(start: Callable[..., Instance]) -> None:
    instance = start()
    assert instance.stop() == 0, instance.errors()
    with pytest.raises(ConnectionRefusedError):
        connect(instance)


def test_stuck_network_process_holds_back_only_its_own(start: Callable[..., Instance]) -> None:
    instance = start("max.connections=5000", "max.connections.per.ip=5000")
    stuck = instance.children()["netproc 0"]
    stuck.suspend()
    try:
        with ExitStack() as stack:
            # More than its descriptor channel holds: the rest goes to the other.
            socks = [stack.enter_context(connect(instance)) for _ in range(900)]
            for sock in socks:
                sock.setblocking(False)
                sock.send(b"hello")
            poll_for_answers(socks, at_least=400)
            stuck.resume()
            poll_for_answers(socks, at_least=900)
    finally:
        stuck.resume()


def poll_for_answers(socks: list[socket.socket], *, at_least: int) -> None:
    """Waits until so many of `socks` have something to read; reads nothing."""
    poll = select.epoll()
    for sock in socks:
        poll.register(sock.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
    ready = 0
    while ready < at_least:
        events = poll.poll(PATIENCE_S)
        assert events, f"only {ready} of {at_least} were answered"
        ready += len(events)
    poll.close()
