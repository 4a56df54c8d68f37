"""`appliance serve --ephemeral`: one line with the address, and nothing left behind, however its parent ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from appliance.control.supervisor import scratch
from appliance.control.supervisor.scratch import Scratch, default_place, remove_dead
from tests.support.broker import end_with_the_test_runner
from tests.support.wire import answers_api_versions

ROOT = Path(__file__).parent.parent.parent
SERVE = [sys.executable, "-m", "appliance", "serve", "--ephemeral"]
PATIENCE_S = 20.0


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def serve(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SERVE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
    )


def test_it_prints_its_address_alone_and_removes_its_data_at_the_end() -> None:
    with serve("--slots", "2") as broker:
        assert broker.stdout is not None
        first, second = broker.stdout.readline().strip().split(",")
        host, port = first.split(":")
        assert (host, second) == ("127.0.0.1", f"127.0.0.1:{int(port) + 1}")
        assert answers_api_versions(int(port) + 1, PATIENCE_S, is_running=lambda: True)
        assert len(_held_by(broker.pid)) == 1
        (directory,) = _held_by(broker.pid)
        broker.terminate()
        rest, _ = broker.communicate(timeout=PATIENCE_S)
    assert (rest, broker.returncode) == ("", 0)
    assert not directory.exists()


def test_json_has_the_address_the_directory_and_the_process() -> None:
    with serve("--json", "--port", "0") as broker:
        broker.communicate(timeout=PATIENCE_S)
    assert broker.returncode == 2, "port 0 means nothing: without --port it chooses one"
    with serve("--json", "--set", "num.partitions=3") as broker:
        assert broker.stdout is not None
        facts = json.loads(broker.stdout.readline())
        broker.terminate()
        broker.communicate(timeout=PATIENCE_S)
    assert facts.pop("bootstrap_servers") == f"127.0.0.1:{facts.pop('port')}"
    assert facts.pop("pid") == broker.pid
    assert Path(facts.pop("data_dir")).name == "data"
    assert facts == {"slots": 1, "security_protocol": "PLAINTEXT"}


@pytest.mark.parametrize("flags", [["--data-dir", "d"], ["--secure"]])
def test_it_refuses_flags_of_a_service(flags: list[str]) -> None:
    done = subprocess.run([*SERVE, *flags], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert f"--ephemeral cannot be used with {flags[0]}" in done.stderr


def test_it_ends_with_its_parent_and_throws_its_data_away() -> None:
    code = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen({[*SERVE, '--json']!r}, stdout=subprocess.PIPE, text=True)\n"
        "print(p.stdout.readline(), flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
    ) as parent:
        assert parent.stdout is not None
        facts = json.loads(parent.stdout.readline())
        family = [psutil.Process(facts["pid"]), *psutil.Process(facts["pid"]).children()]
        parent.kill()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert alive == []
    until(lambda: not Path(facts["data_dir"]).parent.exists())


def test_the_next_one_removes_what_a_kill_of_everything_left() -> None:
    with serve("--json") as broker:
        assert broker.stdout is not None
        directory = Path(json.loads(broker.stdout.readline())["data_dir"]).parent
        family = psutil.Process(broker.pid).children()
        for process in (psutil.Process(broker.pid), *family):
            process.suspend()
        for process in (psutil.Process(broker.pid), *family):
            process.kill()
        broker.communicate(timeout=PATIENCE_S)
    psutil.wait_procs(family, timeout=PATIENCE_S)
    assert directory.exists()
    with serve() as broker:
        assert broker.stdout is not None
        broker.stdout.readline()
        assert not directory.exists()
        broker.terminate()
        broker.communicate(timeout=PATIENCE_S)


def test_a_directory_that_somebody_holds_stays(tmp_path: Path) -> None:
    held, joined = Scratch.make(tmp_path), None
    assert remove_dead(tmp_path) == []
    joined = Scratch.join(held.path)
    held.release()
    assert remove_dead(tmp_path) == []
    joined.release()
    assert remove_dead(tmp_path) == [held.path]
    assert not held.path.exists()


def test_a_parent_that_ends_while_the_broker_is_loaded_is_missed() -> None:
    load = (
        "import os, signal\n"
        "from appliance.__main__ import main\n"
        "parent = os.getppid()\n"
        "os.kill(parent, signal.SIGKILL)\n"
        "while os.getppid() == parent: pass\n"
        "main(['serve', '--ephemeral'])\n"
    )
    start = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    with subprocess.Popen(
        [sys.executable, "-c", start, load],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=ROOT,
    ) as runner:
        try:
            _, said = runner.communicate(timeout=PATIENCE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(runner.pid, signal.SIGKILL)
    assert "the process that started this ephemeral broker has ended" in said


def test_a_forked_process_removes_nothing(tmp_path: Path) -> None:
    held = Scratch.make(tmp_path)
    if (child := os.fork()) == 0:
        held.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert held.path.exists()
    held.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_its_lock_file_stays(tmp_path: Path) -> None:
    """Another broker is making it just now."""
    unfinished = tmp_path / f"appliance-ephemeral-{'0' * 32}"
    unfinished.mkdir()
    foreign = tmp_path / "appliance-ephemeral-mine"
    foreign.mkdir()
    assert remove_dead(tmp_path) == []
    assert unfinished.exists()
    assert foreign.exists()


def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "held").touch()
    (tmp_path / f"appliance-ephemeral-{'1' * 32}").symlink_to(victim)
    assert remove_dead(tmp_path) == []
    assert (victim / "held").exists()


def test_data_lie_where_there_is_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert default_place() == scratch.MEMORY
    monkeypatch.setattr(scratch, "ROOM_BYTES", 1 << 60)
    assert default_place() == tmp_path


def test_what_died_in_memory_is_removed_before_its_room_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory, other = tmp_path / "memory", tmp_path / "other"
    memory.mkdir()
    other.mkdir()
    monkeypatch.setenv("TMPDIR", str(other))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(scratch, "MEMORY", memory)
    dead = Scratch.make(memory)
    dead.release()
    monkeypatch.setattr(scratch, "ROOM_BYTES", 1 << 60)
    held = Scratch.make()
    assert held.path.parent == other
    assert not dead.path.exists()
    held.remove()


def _held_by(pid: int) -> list[Path]:
    """The scratch directories in which a process has files open."""
    open_files = [Path(os.readlink(path)) for path in Path(f"/proc/{pid}/fd").iterdir() if path.exists()]
    return [path.parent for path in open_files if path.name == "held"]
