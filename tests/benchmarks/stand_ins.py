"""A broker of which the harness is told what it asks for, and no more."""

from __future__ import annotations

from benchmarks.brokers.broker import Broker


class StandIn(Broker):
    """Has no process: it neither starts nor stops."""

    name = "appliance"

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def pids(self) -> list[int]:
        return []

    def version(self) -> str:
        return "1"
