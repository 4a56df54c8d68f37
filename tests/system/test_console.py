"""The console in a real Chromium: people log in, look, search, produce and reset, with the rights of their users."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import expect

from tests.support.browser import Window
from tests.system.console_scene import ADMIN, HOSTILE, PATIENCE_S, READER, Console, opened
from tests.system.raw import wait_until

TOPIC: Final = "orders"
SECRET_TOPIC: Final = "salaries"
GROUP: Final = 'readers <b>&"'
BEGAN_MS: Final = 1_700_000_000_000
RECORDS: Final = 90
IN_THE_DARK: Final = frozenset({"/", "/topic/messages", "/topic/produce", "/group/reset", "/group/delete"})
"""Pages that have every kind of element between them."""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with opened(tmp_path_factory.mktemp("console")) as console:
        console.create(TOPIC, 3, configs={"retention.ms": "-1"})
        console.create(SECRET_TOPIC)
        console.produce(
            TOPIC,
            [
                {
                    "key": f"key-{number}",
                    "value": f'{{"id":{number},"price":12345678901234567.89}}',
                    "timestamp": BEGAN_MS + 1000 * number,
                    "partition": number % 3,
                    "headers": [("trace", b"t%d" % number)],
                }
                for number in range(RECORDS)
            ],
        )
        console.produce(
            TOPIC,
            [
                {"key": HOSTILE, "value": HOSTILE, "headers": [(HOSTILE, HOSTILE.encode())], "partition": 0},
                {"key": b"\xff\x00", "value": bytes(range(256)), "partition": 0},
                {"key": b"tombstone", "value": None, "partition": 0},
                {"key": b"large", "value": b"x" * 900_000, "partition": 1},
            ],
        )
        commit(console, GROUP, 5)
        yield console


def commit(console: Console, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": console.broker.address, "group.id": group})
    places = [TopicPartition(TOPIC, partition, offset) for partition in range(3)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def committed(console: Console, group: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": console.broker.address, "group.id": group})
    places = consumer.committed([TopicPartition(TOPIC, partition) for partition in range(3)], PATIENCE_S)
    consumer.close()
    return [each.offset for each in places]


def paths() -> list[str]:
    """Every page that shows something."""
    return [
        "/",
        "/processes",
        "/topics",
        "/topics/new",
        f"/topic?name={TOPIC}",
        f"/topic/messages?name={TOPIC}",
        f"/topic/tail?name={TOPIC}",
        f"/topic/produce?name={TOPIC}",
        f"/topic/configs?name={TOPIC}",
        f"/topic/delete?name={TOPIC}",
        "/groups",
        f"/group?name={quote(GROUP)}",
        f"/group/reset?name={quote(GROUP)}&to=end",
        f"/group/delete?name={quote(GROUP)}",
    ]


def records(window: Window) -> list[str]:
    return window.page.locator("article.record").all_inner_texts()


def test_a_wrong_password_lets_nobody_in(console: Console) -> None:
    with console.window(None) as window:
        page = window.page
        page.goto(f"/topic?name={TOPIC}")
        expect(page).to_have_url(re.compile("/login$"))
        page.get_by_label("User").fill(ADMIN)
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("does not accept this user")
        assert window.serious_faults() == []
        page.goto("/topics")
        expect(page).to_have_url(re.compile("/login$"))


def test_axe_finds_no_serious_fault_in_any_page(console: Console) -> None:
    with console.window() as window:
        for path in paths():
            check(window, path)
        assert window.dialogs == []


def test_pages_fit_a_phone_and_read_well_in_the_dark(console: Console) -> None:
    with console.window(is_phone=True, is_dark=True) as window:
        for path in paths():
            check(window, path, with_axe=path.partition("?")[0] in IN_THE_DARK)


def check(window: Window, path: str, *, with_axe: bool = True) -> None:
    response = window.page.goto(path)
    assert response is not None
    assert response.status == 200, path
    assert not window.is_wider_than_its_window(), path
    assert not with_axe or window.serious_faults() == [], path


def test_the_overview_is_live(console: Console) -> None:
    with console.window() as window:
        page = window.page
        expect(page.locator("#live")).to_have_text("Live, the last five minutes.")
        chart = page.locator("figure[data-series=records_in]")
        console.produce(TOPIC, [{"value": b"live", "partition": 2}] * 200)
        # The rate is back to 0 a second later; the label keeps the highest.
        highest = re.compile("Records in per second: [0-9,]+; highest [1-9]")
        expect(page.get_by_role("img", name=highest)).to_be_visible(timeout=PATIENCE_S * 1000)
        line = chart.locator("polyline").get_attribute("points") or ""
        assert len(line.split()) >= 2


def test_topics_are_created_changed_and_deleted(console: Console) -> None:
    with console.window() as window:
        page = window.page
        page.goto("/topics/new")
        page.get_by_label("Name", exact=True).fill("made.here")
        page.get_by_label("Partitions").fill("2")
        page.get_by_label("Settings").fill("retention.ms=60000\ncleanup.policy=nonsense")
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("alert")).to_contain_text("cleanup.policy")
        page.get_by_label("Settings").fill("retention.ms=60000")
        page.get_by_role("button", name="Check only").click()
        expect(page.get_by_role("alert")).to_contain_text("would create made.here with 2 partitions")
        assert "made.here" not in console.topics()
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("status").first).to_contain_text("topic made.here created")
        page.goto("/topic/configs?name=made.here&edit=retention.ms")
        page.get_by_label("Value of retention.ms").fill("120000")
        page.get_by_role("button", name="Save").click()
        row = page.locator("tr[id='retention.ms']")
        expect(row).to_contain_text("120000")
        expect(row).to_contain_text("set for the topic")
        row.get_by_role("button", name="Default").click()
        expect(row).to_contain_text("default")
        assert window.dialogs == ["Return retention.ms to its default?"]
        page.goto("/topic?name=made.here")
        page.get_by_label("Partitions in all").fill("4")
        page.get_by_role("button", name="Add").click()
        expect(page.get_by_role("status").first).to_contain_text("made.here has 4 partitions")
        page.goto("/topic/delete?name=made.here")
        page.get_by_label("Write the name").fill("another")
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("alert")).to_contain_text("another one")
        page.get_by_label("Write the name").fill("made.here")
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("status").first).to_contain_text("topic made.here deleted")
    assert "made.here" not in console.topics()


def test_messages_are_found_by_key_value_header_offset_and_time(console: Console) -> None:
    with console.window() as window:
        page = window.page
        base = f"/topic/messages?name={TOPIC}"
        for question in ("key=key-7", "contains=%22id%22:7,", "header=trace%3Dt7"):
            page.goto(f"{base}&{question}")
            (found,) = records(window)
            assert "Partition 1, offset 2" in found
            assert '"price": 12345678901234567.89' in found
            assert "trace" in found
        page.goto(f"{base}&from=offset&partition=2&offset=3&limit=2")
        assert [each.splitlines()[0] for each in records(window)] == [
            "Partition 2, offset 3",
            "Partition 2, offset 4",
        ]
        page.get_by_role("link", name="Next").click()
        expect(page.locator("article h3").first).to_have_text("Partition 2, offset 5")
        page.goto(f"{base}&from=time&time={BEGAN_MS + 30_500}&limit=1")
        assert '"id": 31' in records(window)[0]
        page.goto(f"{base}&from=time&time=2023-11-14T22:13:50.500&limit=1")
        assert '"id": 31' in records(window)[0]
        page.goto(f"{base}&from=beginning&limit=3")
        assert ['"id": 0' in records(window)[0], '"id": 2' in records(window)[2]] == [True, True]
        page.goto(f"{base}&partition=1&contains=price&limit=2")
        assert '"id": 88' in records(window)[0]
        page.get_by_role("link", name="Older").click()
        expect(page.locator("article").first).to_contain_text('"id": 82')


def test_what_a_record_holds_is_text_and_never_markup(console: Console) -> None:
    with console.window() as window:
        page = window.page
        page.goto(f"/topic/messages?name={TOPIC}&partition=0&from=offset&offset={RECORDS // 3}")
        found = "".join(records(window))
        assert found.count(HOSTILE) == 4  # key, value, the header's name and its value
        assert "000000  00 01 02 03" in found
        assert "null" in found
        page.goto(f"/topic/messages?name={TOPIC}&key={quote(HOSTILE)}")
        expect(page.get_by_label("Key is")).to_have_value(HOSTILE)
        page.goto(f"/topics?q={quote(HOSTILE)}")
        page.goto(f"/topic?name={quote(HOSTILE)}")
        expect(page.get_by_role("alert")).to_have_text(f"there is no topic {HOSTILE}")
        page.goto(f"/group?name={quote(GROUP)}")
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Group {GROUP}")
        assert page.locator("main img, main script").count() == 0
        assert "owned" not in page.title()


def test_a_large_value_is_cut(console: Console) -> None:
    with console.window() as window:
        page = window.page
        page.goto(f"/topic/messages?name={TOPIC}&key=large")
        expect(page.locator("article")).to_contain_text("the beginning of 879 KiB")
        assert len(page.content()) < 200_000


def test_a_record_is_produced_where_its_key_belongs(console: Console) -> None:
    with console.window() as window:
        page = window.page
        page.goto(f"/topic/produce?name={TOPIC}")
        page.get_by_label("Key is").select_option("text")
        page.get_by_label("Key", exact=True).fill("typed")
        page.get_by_label("Value", exact=True).fill("line one\nline two 🙂")
        page.get_by_label("Headers").fill("colour: red")
        page.get_by_role("button", name="Produce").click()
        expect(page.get_by_role("status").first).to_contain_text("record produced")
        text = page.locator("article.record").inner_text()
        assert "line two 🙂" in text
        assert "colour" in text
        place = re.search(r"Partition (\d), offset (\d+)", text)
        assert place is not None
    consumer = Consumer({"bootstrap.servers": console.broker.address, "group.id": "reads-back"})
    consumer.assign([TopicPartition(TOPIC, int(place[1]), int(place[2]))])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    assert (message.key(), message.value()) == (b"typed", "line one\nline two 🙂".encode())
    assert message.headers() == [("colour", b"red")]


def test_the_tail_is_live_and_shows_text_only(console: Console) -> None:
    with console.window() as window:
        page = window.page
        page.goto(f"/topic/tail?name={TOPIC}")
        expect(page.locator("#tail-state")).to_have_text("Live, the newest record first.")
        time.sleep(1)  # the first round takes the ends
        console.produce(
            TOPIC,
            [{"key": HOSTILE, "value": f"tail {number} {HOSTILE}", "partition": 0} for number in range(3)],
        )
        expect(page.locator("#tail tbody tr")).to_have_count(3, timeout=PATIENCE_S * 1000)
        expect(page.locator("#tail tbody tr").first).to_contain_text(f"tail 2 {HOSTILE}")
        assert page.locator("#tail img").count() == 0
        console.produce(TOPIC, [{"value": f"many {number}", "partition": 0} for number in range(2000)])
        expect(page.locator("#tail-state")).to_contain_text("were skipped", timeout=PATIENCE_S * 1000)
        expect(page.locator("#tail tbody tr").first).to_contain_text("many 1999")
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Go on")).to_have_attribute("aria-pressed", "true")


def test_a_group_is_reset_after_a_dry_run(console: Console) -> None:
    commit(console, "to-reset", 5)
    with console.window() as window:
        page = window.page
        page.goto("/groups?q=to-res")
        page.get_by_role("link", name="to-reset").click()
        expect(page.locator("tbody").last.locator("tr")).to_have_count(3)
        page.get_by_role("link", name="Reset offsets").click()
        page.get_by_label("To", exact=True).select_option("offset")
        page.get_by_label("Offset").fill("7")
        page.get_by_role("button", name="Dry run").click()
        expect(page.get_by_role("heading", name="This is what would change")).to_be_visible()
        assert committed(console, "to-reset") == [5, 5, 5]
        page.get_by_role("button", name="Reset these 3 offsets").click()
        expect(page.get_by_role("status").first).to_contain_text("3 offsets were reset")
        assert committed(console, "to-reset") == [7, 7, 7]
        page.goto("/group/reset?name=to-reset&to=shift&shift=-3")
        page.get_by_role("button", name="Reset these 3 offsets").click()
        expect(page.get_by_role("status").first).to_contain_text("3 offsets were reset")
        assert committed(console, "to-reset") == [4, 4, 4]
        page.goto("/group/delete?name=to-reset")
        page.get_by_label("Write the name").fill("to-reset")
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("status").first).to_contain_text("group to-reset deleted")
    assert committed(console, "to-reset") == [-1001] * 3


def test_a_group_with_members_shows_them_and_is_not_reset(console: Console) -> None:
    options = {"bootstrap.servers": console.broker.address, "group.id": "living", "client.id": "the-member"}
    consumer = Consumer({**options, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([TOPIC])
    wait_until(lambda: bool(consumer.poll(0.2)), "the member gets a record")
    consumer.commit(offsets=[TopicPartition(TOPIC, each, 1) for each in range(3)], asynchronous=False)
    with console.window() as window:
        page = window.page
        page.goto("/group?name=living")
        expect(page.get_by_role("region", name="Members")).to_contain_text("the-member")
        expect(page.get_by_role("region", name="Members")).to_contain_text("orders-0, orders-1, orders-2")
        page.goto("/group/reset?name=living&to=end")
        page.get_by_role("button", name="Reset these 3 offsets").click()
        expect(page.get_by_role("alert")).to_contain_text("were not reset")
    consumer.close()
    assert committed(console, "living") == [1, 1, 1]


def test_the_broker_decides_what_a_user_may_see_and_do(console: Console) -> None:
    with console.window(READER) as window:
        page = window.page
        expect(page.get_by_role("main")).to_contain_text("this user does not have")
        page.goto("/topics?internal=1")
        assert page.locator("tbody th").all_inner_texts() == [TOPIC]
        page.goto(f"/topic/messages?name={TOPIC}&key=key-7")
        assert len(records(window)) == 1
        page.goto(f"/topic?name={SECRET_TOPIC}")
        expect(page.get_by_role("alert")).to_have_text(f"there is no topic {SECRET_TOPIC}")
        for path in (f"/topic/messages?name={SECRET_TOPIC}", f"/topic/configs?name={SECRET_TOPIC}"):
            response = page.goto(path)
            assert response is not None
            assert response.status == 404
        for path in ("/processes", "/events"):
            response = page.goto(path)
            assert response is not None
            assert response.status == 403
        page.goto(f"/topic/produce?name={TOPIC}")
        page.get_by_role("button", name="Produce").click()
        expect(page.get_by_role("alert")).to_contain_text("TOPIC_AUTHORIZATION_FAILED")
        page.goto(f"/topic/delete?name={TOPIC}")
        page.get_by_label("Write the name").fill(TOPIC)
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("alert")).to_contain_text("AUTHORIZATION_FAILED")
        page.goto("/groups")
        assert page.locator("tbody th").count() == 0
    assert TOPIC in console.topics()


def test_a_change_needs_the_secret_of_the_form_and_the_right_origin(console: Console) -> None:
    cookie = console.session()
    new = {"name": "forged", "partitions": "1"}
    page = console.ask("GET", "/topics/new", headers=cookie)[2]
    secret = re.search(r'name="csrf" value="([^"]+)"', page)
    assert secret is not None
    right = {**new, "csrf": secret[1]}
    path = "/topics/new"
    assert console.ask("POST", path, form=new, headers=cookie)[0] == 403
    assert console.ask("POST", path, form={**new, "csrf": "x"}, headers=cookie)[0] == 403
    for forged in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert console.ask("POST", path, form=right, headers={**cookie, **forged})[0] == 403
    assert console.ask("POST", path, form=right)[0] == 303  # to the login: there is no session
    assert "forged" not in console.topics()
    assert console.ask("POST", path, form=right, headers={**cookie, "Origin": console.url})[0] == 303
    assert "forged" in console.topics()


def test_the_cookie_and_the_headers_keep_other_pages_out(console: Console) -> None:
    form = {"user": ADMIN, "password": f"{ADMIN}-secret", "mechanism": "SCRAM-SHA-256"}
    _, headers, _ = console.ask("POST", "/login", form=form)
    cookie = headers["set-cookie"]
    assert "; HttpOnly" in cookie
    assert "; SameSite=Strict" in cookie
    assert str(console.port) in cookie.partition("=")[0]
    assert console.ask("GET", "/", headers={"Host": "evil.example"})[0] == 421
    assert (
        console.ask("POST", "/login", form=form, headers={"Host": f"evil.example:{console.port}"})[0] == 421
    )
    status, headers, body = console.ask(
        "GET", "/assets/console.js", headers={"Origin": "https://evil.example"}
    )
    assert status == 200
    assert "access-control-allow-origin" not in headers
    assert console.ask("GET", "/assets/../main.py")[0] == 404
    assert "innerHTML" not in body


def test_after_a_logout_the_cookie_is_worth_nothing(console: Console) -> None:
    cookie = console.session()
    page = console.ask("GET", "/", headers=cookie)[2]
    secret = re.search(r'name="csrf" value="([^"]+)"', page)
    assert secret is not None
    assert console.ask("POST", "/logout", form={"csrf": secret[1]}, headers=cookie)[0] == 303
    assert console.ask("GET", "/", headers=cookie)[1]["location"] == "/login"


def test_readers_that_stop_reading_hold_up_nobody(console: Console) -> None:
    cookie = console.session()["Cookie"]
    request = f"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n\r\n".encode()
    readers = []
    for _ in range(8):
        reader = socket.create_connection(("127.0.0.1", console.port), timeout=PATIENCE_S)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        reader.sendall(request)
        readers.append(reader)
    with console.window() as window:
        expect(window.page.locator("#live")).to_have_text("Live, the last five minutes.")
    for each in readers:
        each.close()


def test_the_console_comes_back_after_a_kill_and_people_log_in_again(console: Console) -> None:
    with console.window() as window:
        before = {row.role: row.pid for row in console.broker.processes()}
        console.broker.kill_role("console")
        wait_until(console.broker.is_whole, "the console starts again")
        after = {row.role: row.pid for row in console.broker.processes()}
        assert {role for role in before if before[role] != after[role]} == {"console"}
        wait_until(lambda: is_served(console), "the console answers")
        window.page.goto("/topics")
        expect(window.page).to_have_url(re.compile("/login$"))
    with console.window() as window:
        row = window.page.get_by_role("row", name=re.compile("^console"))
        # The first look of a console is from the time before it was ready.
        wait_until(
            lambda: bool(window.page.goto("/processes")) and "running" in row.inner_text(),
            "the new console says that it runs",
        )
        expect(row.locator("td").nth(3)).to_have_text("1")


def is_served(console: Console) -> bool:
    try:
        return console.ask("GET", "/login")[0] == 200
    except OSError:
        return False


def test_topics_of_the_whole_cluster_are_listed_in_pages(console: Console) -> None:
    names = [f"page-{number:03}" for number in range(60)]
    console.admin.create_topics([NewTopic(name, 1, 1) for name in names])[names[-1]].result(PATIENCE_S)
    wait_until(lambda: set(names) <= console.topics(), "all topics are there")
    with console.window() as window:
        page = window.page
        page.goto("/topics?q=page-")
        expect(page.locator("tbody th")).to_have_count(50)
        page.get_by_role("link", name="Next").click()
        expect(page.locator("tbody th")).to_have_count(10)
        expect(page.locator("tbody th").last).to_have_text("page-059")
