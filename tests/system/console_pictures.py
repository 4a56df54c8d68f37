"""Makes the pictures of docs/console.md: `python -m tests.system.console_pictures docs/console`.

One appliance with three slots has a little of everything that the console shows. A name or several after the directory
make only these pictures: `python -m tests.system.console_pictures docs/console logs`.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page, expect

from tests.system.console_records import GROUP, LATER, ORDERS, TRACE, fill
from tests.system.console_scene import PATIENCE_S, Console, opened
from tests.system.raw import wait_until

SIZE: Final = {"width": 1280, "height": 720}
PAYMENTS: Final = "payments"
LIVE_S: Final = 45
"""How long records arrive before the picture of the overview."""


def _heading(page: Page) -> None:
    expect(page.locator("h1")).to_be_visible()


def _live(page: Page) -> None:
    expect(page.locator("#live")).to_contain_text("Live", timeout=PATIENCE_S * 1000)
    time.sleep(LIVE_S)


def _buckets(page: Page) -> None:
    expect(page.locator("table").first).to_contain_text(f"group {GROUP}", timeout=PATIENCE_S * 1000)


def _lines(page: Page) -> None:
    expect(page.locator("#log tbody")).to_contain_text("is running again", timeout=PATIENCE_S * 1000)


PICTURES: Final[dict[str, tuple[str, Callable[[Page], None]]]] = {
    "overview": ("/", _live),
    "messages": (f"/topic/messages?name={PAYMENTS}&key=key-7", _heading),
    "delayed": (f"/delayed?topic={LATER}", _heading),
    "dead-letters": (f"/dead-letters/of?group={GROUP}&topic={ORDERS}", _heading),
    "audit": (f"/audit?topic={ORDERS}", _buckets),
    "trace": (f"/trace?record={TRACE}", _heading),
    "logs": ("/logs", _lines),
}
LOGS: Final = "logs"
PHONE: Final = "phone"


def main(directory: Path, names: list[str]) -> None:
    """Write NAME.png into `directory` for each of `names`; for all without names."""
    wanted = names or [*PICTURES, PHONE]
    with tempfile.TemporaryDirectory() as home:
        more: dict[str, Any] = {"services.processes": 1, "default.replication.factor": 3}
        with opened(Path(home), slots=3, **more) as console:
            _prepare(console)
            with _arriving(console):
                for name in wanted:
                    _take(console, name, directory / f"{name}.png")
                    print(directory / f"{name}.png")


def _prepare(console: Console) -> None:
    fill(console, "cup of tea")
    console.create(PAYMENTS, 3, 3)
    value = '{{"id": {0}, "price": 12345678901234567.89, "name": "Zoë"}}'
    console.produce(
        PAYMENTS,
        [
            {"key": f"key-{number}", "value": value.format(number), "headers": [("shop", b"north")]}
            for number in range(1000)
        ],
    )
    cookie = console.session()
    for path, shown in ((f"/trace?record={TRACE}", GROUP), (f"/audit?topic={ORDERS}", f"group {GROUP}")):
        wait_until(
            lambda path=path, shown=shown: shown in console.ask("GET", path, headers=cookie)[2],  # type: ignore[misc]
            f"{path} is whole",
        )


@contextmanager
def _arriving(console: Console) -> Iterator[None]:
    """Records that arrive all the time, a few more each second."""
    is_over = threading.Event()

    def produce() -> None:
        count = 100
        while not is_over.wait(0.5):
            console.produce(PAYMENTS, [{"value": b"x" * 300}] * count)
            count = 100 if count > 600 else count + 40

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _take(console: Console, name: str, file: Path) -> None:
    if name == PHONE:
        with console.window(is_phone=True, is_dark=True) as opened_window:
            opened_window.page.goto(f"/topic?name={PAYMENTS}")
            _heading(opened_window.page)
            opened_window.page.screenshot(path=file)
        return
    path, wait = PICTURES[name]
    if name == LOGS:
        # An operator opens this page after something has happened.
        console.broker.kill_role("ioproc 1.0")
        wait_until(console.broker.is_whole, "the worker is back")
    with console.window() as opened_window:
        opened_window.page.set_viewport_size(SIZE)  # type: ignore[arg-type]
        opened_window.page.goto(path)
        wait(opened_window.page)
        opened_window.page.screenshot(path=file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
