"""The supervisor's pure parts: life table, back-off, stop order; and its sockets and lock."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from appliance.channels.roles import RoleKind
from appliance.channels.supervision import Failed, Stop, SupervisionSocket, socket_pair
from appliance.config import load_settings
from appliance.control.supervisor import stop_order
from appliance.control.supervisor.back_off import HEALTHY_LIFE_MS, BackOff
from appliance.control.supervisor.child_states import ALIVE, TRANSITIONS, Event, State, after
from appliance.control.supervisor.data_directory import DataDirectory
from appliance.control.supervisor.entry_points import ENTRY_POINTS, load, load_all
from appliance.control.supervisor.listening import close_all, listeners
from appliance.errors import ApplianceDefect, OperatorFault
from tests.support.wire import free_ports


def test_every_state_is_reached_and_leads_to_gone_by_stop() -> None:
    reached = {State.ABSENT} | set(TRANSITIONS.values())
    assert reached == set(State)
    for state in State:
        after_stop = after(state, Event.STOP)
        assert after_stop is (State.STOPPING if state in ALIVE else State.GONE)


def test_only_a_living_child_dies() -> None:
    assert {state for state, event in TRANSITIONS if event is Event.DIED} == ALIVE


def test_impossible_event_is_a_defect() -> None:
    with pytest.raises(ApplianceDefect, match="ready while waiting"):
        after(State.WAITING, Event.READY)


def test_back_off_doubles_to_its_limit_and_forgets_after_a_healthy_life() -> None:
    back_off = BackOff(50, 5000)
    assert [back_off.after_death(10) for _ in range(10)] == [
        0,
        50,
        100,
        200,
        400,
        800,
        1600,
        3200,
        5000,
        5000,
    ]
    assert back_off.deaths == 10
    assert back_off.after_death(HEALTHY_LIFE_MS) == 0
    assert back_off.after_death(HEALTHY_LIFE_MS - 1) == 50
    for _ in range(10_000):
        back_off.after_death(0)
    assert back_off.after_death(0) == 5000


def test_stop_order_has_a_place_for_every_role_and_shares_the_whole_time() -> None:
    kinds = [kind for stage in stop_order.STAGES for kind in stage.kinds]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) == set(RoleKind) - {RoleKind.SUPERVISOR}
    shares = [stage.share_percent for stage in stop_order.STAGES]
    assert shares == sorted(shares)
    assert shares[-1] == 100


def test_child_is_told_less_time_than_it_gets() -> None:
    stage = stop_order.STAGES[-1]
    deadline_ns = stop_order.deadline_ns(stage, 5_000_000_000, 1_000)
    assert deadline_ns == 6_000_000_000
    assert stop_order.told_ms(deadline_ns, 5_000_000_000) == 900
    assert stop_order.told_ms(deadline_ns, 7_000_000_000) == 0


def test_last_words_of_a_child_that_left_unread_messages_are_heard() -> None:
    ours, theirs = map(SupervisionSocket, socket_pair())
    ours.send(Stop(100))
    theirs.send(Failed("no space"))
    theirs.close()
    assert ours.receive() == [Failed("no space")]
    assert ours.receive() is None
    ours.close()


def test_every_role_but_the_supervisor_has_an_entry_point() -> None:
    assert set(ENTRY_POINTS) == set(RoleKind) - {RoleKind.SUPERVISOR}


def test_entry_point_that_names_nothing_is_a_defect() -> None:
    with pytest.raises(ApplianceDefect, match="not a function"):
        load("appliance.netproc.acceptor_main:no_such_function")


def test_code_of_all_kinds_is_loaded_but_of_those_that_are_not_forked() -> None:
    nothing = "appliance.netproc.acceptor_main:no_such_function"
    mains = load_all({**ENTRY_POINTS, RoleKind.REPLICA: nothing}, set(ENTRY_POINTS) - {RoleKind.REPLICA})
    assert set(mains) == set(ENTRY_POINTS) - {RoleKind.REPLICA}
    assert mains[RoleKind.ACCEPTOR] is load(ENTRY_POINTS[RoleKind.ACCEPTOR])
    with pytest.raises(ApplianceDefect, match="not a function"):
        load_all({**ENTRY_POINTS, RoleKind.CLEANER: nothing}, set(ENTRY_POINTS))


def test_accepted_connection_inherits_no_delay_and_keep_alive(tmp_path: Path) -> None:
    settings = load_settings(None, {"data.dir": str(tmp_path), "port": str(free_ports())})
    bound = listeners(settings)
    with socket.create_connection(("127.0.0.1", settings.port)):
        # The connection is in the backlog already: connect returned.
        accepted, _ = bound["PLAINTEXT", 0].accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    close_all(bound.values())


def test_each_slot_listens_on_its_own_port(tmp_path: Path) -> None:
    settings = load_settings(None, {"data.dir": str(tmp_path), "port": str(free_ports(3)), "slots": "3"})
    bound = listeners(settings)
    assert {key: sock.getsockname()[1] for key, sock in bound.items()} == {
        ("PLAINTEXT", slot): settings.port + slot for slot in range(3)
    }
    close_all(bound.values())


def test_address_of_another_host_is_refused_by_name(tmp_path: Path) -> None:
    settings = load_settings(
        None, {"data.dir": str(tmp_path), "port": str(free_ports()), "host": "203.0.113.7"}
    )
    with pytest.raises(OperatorFault, match=r"203\.0\.113\.7 is no address of this host"):
        listeners(settings)


def test_released_data_directory_can_be_held_again(tmp_path: Path) -> None:
    first = DataDirectory.hold(tmp_path / "data", patience_ms=0)
    first.write_run_file({"pid": os.getpid()})
    first.release()
    assert not (tmp_path / "data" / "run.json").exists()
    DataDirectory.hold(tmp_path / "data", patience_ms=0).release()


def test_data_directory_that_cannot_be_made_is_the_operators_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorFault, match="data directory"):
        DataDirectory.hold(tmp_path / "file" / "data", patience_ms=0)
