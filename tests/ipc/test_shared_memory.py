from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.errors import HostFault
from appliance.ipc.errors import UnsupportedProcessor
from appliance.ipc.fence import require_total_store_order
from appliance.ipc.shared_memory import Region, create_directory, names, unlink

from .conftest import Fork, MakeRegion


def test_new_region_is_zeros_and_takes_no_memory(make_region: MakeRegion) -> None:
    region = make_region(64 << 20)
    assert region.size_bytes == len(region.view) == 64 << 20
    assert region.resident_bytes() == 0
    assert bytes(region.view[:4096]) == bytes(4096)


def test_region_is_open_to_its_user_only(instance: str, make_region: MakeRegion) -> None:
    make_region(4096)
    [name] = names(instance.rstrip("/"))
    assert os.stat(name).st_mode & 0o777 == 0o600
    assert os.stat(instance).st_mode & 0o777 == 0o700


def test_what_one_process_writes_another_reads(make_region: MakeRegion, fork: Fork) -> None:
    region = make_region(4096)

    def write() -> None:
        Region.open(region.name).view[10:15] = b"hello"

    assert fork(write).join() == 0
    assert bytes(region.view[10:15]) == b"hello"


def test_a_taken_name_is_refused(make_region: MakeRegion) -> None:
    region = make_region(4096)
    with pytest.raises(HostFault, match="exists"):
        Region.create(region.name, 4096)


def test_a_missing_name_is_a_host_fault(instance: str) -> None:
    with pytest.raises(HostFault):
        Region.open(f"{instance}nothing")


@pytest.mark.parametrize("what", ["a symbolic link", "another mode", "another owner", "a pipe"])
def test_a_file_that_is_not_a_private_one_of_ours_is_not_opened(instance: str, what: str) -> None:
    name = f"{instance}planted"
    Region.create(name, 4096).close()
    match what:
        case "a symbolic link":
            os.rename(name, f"{instance}aside")
            os.symlink(f"{instance}aside", name)
        case "another mode":
            os.chmod(name, 0o660)
        case "another owner":
            if os.geteuid() != 0:
                with pytest.raises(HostFault):
                    Region.open(name, owner=0)
                return
            os.chown(name, 65534, -1)
        case _:
            os.unlink(name)
            os.mkfifo(name, 0o600)
    with pytest.raises(HostFault):
        Region.open(name)


def test_a_directory_name_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.symlink_to(tmp_path / "elsewhere")
    assert not create_directory(taken)
    assert not (tmp_path / "elsewhere").exists()


def test_a_parent_in_which_others_could_rename_our_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(HostFault, match="sticky"):
        create_directory(tmp_path / "open" / "ours")


def test_mapping_outlives_its_name(make_region: MakeRegion) -> None:
    region = make_region(4096)
    assert unlink(region.name)
    assert not unlink(region.name)
    region.view[0] = 7
    assert region.view[0] == 7
    assert region.resident_bytes() == -1


def test_close_tolerates_slices_that_are_still_held(make_region: MakeRegion) -> None:
    region = make_region(4096)
    held = region.view[8:16].cast("Q")
    region.close()
    held[0] = 5
    assert held[0] == 5


def test_a_region_holds_one_descriptor_and_lets_go_of_it(make_region: MakeRegion) -> None:
    before = len(os.listdir("/proc/self/fd"))
    regions = [make_region(4096) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before + 20
    for region in regions:
        region.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_names_left_by_a_killed_process_are_found_and_removed(instance: str, fork: Fork) -> None:
    def die() -> None:
        for number in range(3):
            Region.create(f"{instance}{number}", 4096)
        os.kill(os.getpid(), 9)

    assert fork(die).join() == -9
    left = names(instance.rstrip("/"))
    assert left == [f"{instance}{number}" for number in range(3)]
    assert all(unlink(name) for name in left)
    assert names(instance.rstrip("/")) == []


def test_a_child_that_ends_does_not_take_the_region_along(instance: str, make_region: MakeRegion) -> None:
    """Python's own shared memory removes names behind the back of those who use them; ours does not."""
    region = make_region(4096)
    code = f"from appliance.ipc.shared_memory import Region; Region.open({region.name!r}).view[0] = 9"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert names(instance.rstrip("/")) == [region.name]
    assert region.view[0] == 9


def test_discarded_pages_are_returned_and_read_as_zeros(make_region: MakeRegion) -> None:
    region = make_region(4 << 20)
    region.view[:] = b"x" * (4 << 20)
    assert region.resident_bytes() == 4 << 20
    region.discard(1 << 20, 2 << 20)
    assert region.resident_bytes() == 2 << 20
    assert bytes(region.view[(1 << 20) - 1 : (1 << 20) + 2]) == b"x\0\0"


def test_processors_with_weaker_ordering_are_refused_by_name() -> None:
    require_total_store_order("x86_64")
    require_total_store_order("AMD64")
    with pytest.raises(UnsupportedProcessor, match="aarch64"):
        require_total_store_order("aarch64")


def test_a_region_that_is_only_read_has_no_writable_descriptor_or_mapping(make_region: MakeRegion) -> None:
    region = make_region(8192)
    region.view[5] = 7
    before = set(os.listdir("/proc/self/fd"))
    reader = Region.open(region.name, writable=False)
    assert reader.view[5] == 7
    with pytest.raises(TypeError, match="read-only"):
        reader.view[5] = 8
    (descriptor,) = set(os.listdir("/proc/self/fd")) - before
    assert fcntl.fcntl(int(descriptor), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    reader.close()


@pytest.mark.parametrize("position", [8192, -4096, 1 << 40])
def test_a_page_beyond_the_region_is_refused(make_region: MakeRegion, position: int) -> None:
    with pytest.raises(HostFault, match="no page"):
        Region.open_page(make_region(8192).name, position)
