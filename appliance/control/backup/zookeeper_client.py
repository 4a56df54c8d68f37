"""A client of ZooKeeper for backup and restore, which only read with it: the controller's store is another one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from appliance.config.zookeeper_address import split_connect
from appliance.errors import HostFault, OperatorFault

CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 10.0
"""Without a bound, a question that is asked after the connection is lost waits for the next connection."""


def split_address(connect: str) -> tuple[str, str]:
    """The servers and the chroot (`/kafka`, or "") of `host:port,host:port/kafka`. Raises OperatorFault."""
    try:
        return split_connect(connect)
    except ValueError:
        raise OperatorFault(
            f"{connect!r} is no address of ZooKeeper such as zk1:2181,zk2:2181/kafka"
        ) from None


def reading_client(hosts: str) -> Any:
    """A client that is connected. Raises HostFault when no server answers."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(hosts=hosts, timeout=CONNECT_TIMEOUT_S)
    try:
        client.start(timeout=CONNECT_TIMEOUT_S)
    except KazooTimeoutError as error:
        end_client(client)
        raise HostFault(f"ZooKeeper at {hosts} does not answer within {CONNECT_TIMEOUT_S:.0f} s") from error
    return client


def end_client(client: Any) -> None:
    """End its session. kazoo raises a bare Exception if one of its threads still waits for a server."""
    with suppress(Exception):
        client.stop()
    with suppress(Exception):
        client.close()
