"""franz-go logs in, produces and reads back, by the tests' program on it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence

from tests.clients.adapters.driver_process import DriverProcess
from tests.clients.transactional.drivers import FranzGoTransactions


def play_logged_in(
    address: str,
    topic: str,
    values: Sequence[bytes],
    *,
    mechanism: str,
    user: str = "",
    password: str,
    authority: str = "",
) -> list[bytes]:
    """Return what a client reads that has written `values`; with `authority`, a PEM file, over TLS.

    Raises:
        tests.clients.client.RefusedError: the broker refused the login, or a request.
    """
    driver = DriverProcess("logins of franz-go", FranzGoTransactions.command)
    try:
        told = driver.ask(
            "playLoggedIn",
            address=address,
            authority=authority,
            mechanism=mechanism,
            user=user,
            password=password,
            topic=topic,
            values=[b64encode(value).decode() for value in values],
        )
    finally:
        driver.kill()
    assert isinstance(told, list)
    return [b64decode(value) for value in told]
