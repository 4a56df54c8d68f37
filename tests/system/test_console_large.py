"""The console with 10,000 partitions, and over three slots whose processes are killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Error, expect

from appliance.console.rendering import amount
from tests.support.browser import Window
from tests.system.console_scene import Console, opened
from tests.system.raw import wait_until

pytestmark = pytest.mark.slow

TOPICS: Final = 800
PARTITIONS: Final = 10
LARGE: Final = "one-large-topic"
LARGE_PARTITIONS: Final = 2_000
PAGE_PROCESSOR_S: Final = 0.5
"""Of the console process, for one page, not compiled. A person waits for that and for the browser."""
ROLES: Final = (
    "netproc 0",
    "ioproc 1.0",
    "coordinator",
    "controller",
    "purgatory",
    "replica 2",
    "acceptor",
    "console",
)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    home = tmp_path_factory.mktemp("large")
    with opened(home, is_secured=False) as console:
        names = [f"topic-{number:04}" for number in range(TOPICS)]
        console.create(LARGE, LARGE_PARTITIONS)
        for first in range(0, TOPICS, 50):
            new = [NewTopic(name, PARTITIONS, 1) for name in names[first : first + 50]]
            for future in console.admin.create_topics(new, request_timeout=300).values():
                future.result(300)
        console.produce(
            LARGE, [{"value": b"%d" % number, "partition": number % 64} for number in range(1000)]
        )
        yield console


def test_pages_of_ten_thousand_partitions_cost_little(large: Console) -> None:
    (pid,) = large.broker.pids("console")
    process = psutil.Process(pid)
    figures = {}
    with large.window() as window:
        page = window.page
        for path in (
            "/",
            "/processes",
            "/topics",
            "/topics?sort=size",
            "/topics?q=-04&page=2",
            f"/topic?name={LARGE}",
            f"/topic?name={LARGE}&page=40",
            f"/topic/messages?name={LARGE}",
            f"/topic/configs?name={LARGE}",
            "/groups",
        ):
            before = process.cpu_times()
            began_s = time.monotonic()
            response = page.goto(path)
            took_s = time.monotonic() - began_s
            after = process.cpu_times()
            assert response is not None
            assert response.status == 200, path
            used_s = after.user + after.system - before.user - before.system
            page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
            paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            figures[path] = (
                f"{used_s:.2f} s of processor time, {took_s:.2f} s, first paint after {paint:.0f} ms"
            )
            assert len(page.content()) < 300_000, path
            assert used_s < PAGE_PROCESSOR_S, (path, used_s)
        page.goto("/topics?sort=partitions")
        expect(page.locator("tbody th").first).to_have_text(LARGE)
        page.goto("/topics?sort=records")
        expect(page.locator("tbody tr").first).to_contain_text(amount(1000))
    print(*(f"{path}: {text}" for path, text in figures.items()), sep="\n")


def test_a_console_that_nobody_uses_costs_next_to_nothing(large: Console) -> None:
    (pid,) = large.broker.pids("console")
    process = psutil.Process(pid)
    before, began_s = process.cpu_times(), time.monotonic()
    time.sleep(20)
    after, ended_s = process.cpu_times(), time.monotonic()
    used = (after.user + after.system - before.user - before.system) / (ended_s - began_s)
    print(f"{100 * used:.2f} % of a core, {process.memory_info().rss / 1e6:.0f} MB resident")
    assert used < 0.04


def test_pages_are_there_after_each_kill_of_three_slots(tmp_path: Path) -> None:
    with opened(tmp_path, slots=3, is_secured=False) as console:
        console.create("orders", 6, 3)
        console.produce("orders", [{"value": b"%d" % number} for number in range(300)])
        with console.window() as window:
            for role in ROLES:
                window.page.goto("/")
                console.broker.kill_role(role)
                wait_until(console.broker.is_whole, f"{role} starts again")
                for path in ("/", "/processes", "/topics", "/topic/messages?name=orders", "/groups", "/acls"):
                    wait_until(partial(is_there, window, path), f"{path} after the death of {role}")
            window.page.goto("/processes")
            for role in ROLES:
                row = window.page.locator("tbody tr").filter(
                    has=window.page.get_by_role("rowheader", name=role, exact=True)
                )
                expect(row.locator("td").nth(3)).to_have_text("1")
            window.page.goto("/topic/messages?name=orders&limit=500&from=beginning")
            expect(window.page.locator("article.record")).to_have_count(300)


def is_there(window: Window, path: str) -> bool:
    """Load a page; log in again if the console has lost the session."""
    try:
        response = window.page.goto(path)
        if response is not None and window.page.url.endswith("/login"):
            window.page.get_by_role("button", name="Open the console").click()
            response = window.page.goto(path)
    except Error:
        return False  # the console itself is starting
    return response is not None and response.status == 200
