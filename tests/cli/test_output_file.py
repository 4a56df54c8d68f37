"""The file of `--output`: complete under its name, or not there."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.cli.ended_by_signal import ends_by_signal
from appliance.cli.output_file import UnfitFile, opened


def write_and_fail(path: Path, before: bytes, after: bytes = b"") -> None:
    with opened(str(path)) as sink:
        sink.write(before)
        sink.abandon()
        sink.write(after)
        1 // 0  # noqa: B018


def test_a_file_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with opened(str(path)) as sink:
        sink.write(b"half")
        sink.flush()
        assert not path.exists()
        sink.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert os.listdir(tmp_path) == ["out"]


def test_after_a_failure_the_file_of_before_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"before")
    with pytest.raises(ZeroDivisionError):
        write_and_fail(path, b"half")
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["out"]


def test_files_that_end_with_part_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out.part").write_bytes(b"somebody's")
    with opened(str(tmp_path / "out")) as sink:
        sink.write(b"ours")
    assert (tmp_path / "out.part").read_bytes() == b"somebody's"


def test_two_commands_with_one_file_do_not_mix_their_bytes(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    with opened(path) as first, opened(path) as second:
        first.write(b"1" * 100_000)
        second.write(b"2" * 10)
    assert Path(path).read_bytes() == b"1" * 100_000
    assert os.listdir(tmp_path) == ["out"]


def test_the_new_file_has_the_mode_of_the_one_before_and_a_link_stays_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_bytes(b"before")
    path.chmod(0o640)
    link.symlink_to(path)
    with opened(str(link)) as sink:
        sink.write(b"after")
    assert link.is_symlink()
    assert path.read_bytes() == b"after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
    reader.start()
    with opened(str(path)) as sink:
        sink.write(b"through")
    reader.join(10)
    assert found == [b"through"]
    assert path.is_fifo()


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    path = tmp_path / "null"
    path.symlink_to("/dev/null")
    with opened(str(path)) as sink:
        sink.write(b"away")
    assert path.is_char_device()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (lambda at: at, "is a directory"),
        (lambda at: at / "nowhere" / "out", "No such file or directory"),
        (lambda at: at / ("x" * 300), "File name too long"),
        (lambda at: Path("/dev/full"), "No space left on device"),
    ],
)
def test_what_cannot_be_written_is_told(tmp_path: Path, name: Callable[[Path], Path], says: str) -> None:
    with pytest.raises(UnfitFile, match=says), opened(str(name(tmp_path))) as sink:
        sink.write(b"x" * 100_000)
    assert os.listdir(tmp_path) == []


def test_what_is_written_after_a_failure_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
    reader.start()
    with pytest.raises(ZeroDivisionError):
        write_and_fail(path, b"rows", after=b"the end of a file")
    reader.join(10)
    assert found == [b"rows"]


def test_errors_of_others_are_not_those_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError), opened(str(tmp_path / "out")):
        raise TimeoutError("the broker is silent")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_file(tmp_path: Path, number: signal.Signals) -> None:
    program = (
        "import sys, time\n"
        "from appliance.cli.output_file import opened\n"
        "with opened(sys.argv[1]) as sink:\n"
        "    sink.write(b'half')\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as writing:
        assert writing.stdout is not None
        writing.stdout.readline()
        assert len(os.listdir(tmp_path)) == 1
        writing.send_signal(number)
        writing.wait(20)
    assert os.listdir(tmp_path) == []


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ends_by_signal():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
