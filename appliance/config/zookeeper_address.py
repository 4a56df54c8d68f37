"""Addresses of a ZooKeeper ensemble, as `zookeeper.connect` has them: `host:port,host:port/chroot`."""

from __future__ import annotations

import re
from typing import Final

_HOST: Final = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_CONNECT: Final = re.compile(
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)(?P<chroot>(?:/(?!\.\.?(?:/|$))[A-Za-z0-9_.-]+)*)/?"
)


def split_connect(connect: str) -> tuple[str, str]:
    """Return the servers (`host:port,host:port`) and the chroot (`/kafka`, or "" if there is none).

    A slash at the end means nothing.

    Raises:
        ValueError: it is no such address. The text says what one looks like.
    """
    found = _CONNECT.fullmatch(connect)
    if found is None:
        raise ValueError(
            f"{connect[:100]!r}: must be host:port, several separated by commas, followed by a /chroot if you use one"
        )
    return found["hosts"], found["chroot"]
