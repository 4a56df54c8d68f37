"""A broker that somebody else started: for a quick look while tuning."""

from pathlib import Path

from benchmarks import proc
from benchmarks.brokers.broker import Broker
from benchmarks.void import Void


class Running(Broker):
    """Whatever listens at an address of this machine; never started, never stopped from here."""

    name = "running"

    def __init__(self, address: str) -> None:
        super().__init__(Path("/nonexistent"))
        self.address = address
        self._root = _listener(int(address.rpartition(":")[2]))

    def start(self) -> None:
        """It runs already."""

    def stop(self) -> None:
        """It is not ours."""

    def pids(self) -> list[int]:
        return proc.descendants(self._root)

    def version(self) -> str:
        return "running"

    def create_topic(self, topic: str, partitions: int) -> None:
        try:
            super().create_topic(topic, partitions)
        except Void as refused:
            print(f"  ({refused}: left to auto-create)")


def _listener(port: int) -> int:
    """The oldest process that holds the listening socket of `port`. Raises Void."""
    wanted = f":{port:04X}"
    inodes = {
        f"socket:[{fields[9]}]"
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in (line.split() for line in Path(table).read_text().splitlines()[1:])
        if fields[1].endswith(wanted) and fields[3] == "0A"
    }
    holders = []
    for entry in proc.PROC.iterdir():
        if entry.name.isdigit():
            try:
                if any(str(link.readlink()) in inodes for link in (entry / "fd").iterdir()):
                    holders.append(int(entry.name))
            except OSError:
                continue
    if not holders:
        raise Void(f"nobody listens on port {port}")
    return min(holders)
