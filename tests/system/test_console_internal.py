"""Pages about what the broker does with records by itself, over three slots: delayed, dead letters, audit, traces.

The page of logs, and records in Avro and Protobuf, too.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from playwright.sync_api import expect

from tests.cli.command import appliance
from tests.schemas.samples import ORDER_AVSC, confluent_avro, confluent_protobuf, order_descriptors
from tests.support.browser import Window
from tests.system.console_records import GROUP, LATER, ORDERS, TRACE, dead_letters, fill
from tests.system.console_scene import HOSTILE, PATIENCE_S, READER, Console, opened
from tests.system.raw import wait_until


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    home = tmp_path_factory.mktemp("console")
    schemas = home / "schemas"
    schemas.mkdir()
    (schemas / "7.avsc").write_text(ORDER_AVSC)
    (schemas / "8.desc").write_bytes(order_descriptors())
    more = {
        "services.processes": 1,
        "console.schema.directory": str(schemas),
        "default.replication.factor": 3,
    }
    with opened(home, slots=3, **more) as console:
        fill(console, HOSTILE)
        yield console


OF: Final = f"group={GROUP}&topic={ORDERS}"
PATHS: Final = (
    "/delayed",
    f"/delayed?topic={LATER}",
    f"/delayed/record?topic={LATER}&id=id-3",
    "/dead-letters",
    f"/dead-letters/of?{OF}",
    f"/dead-letters/change?action=replay&{OF}",
    f"/dead-letters/change?action=purge&{OF}&key=dead-1",
    "/audit",
    f"/audit?topic={ORDERS}",
    "/trace",
    f"/trace?record={TRACE}",
    "/logs",
    f"/topic/messages?name={ORDERS}&form=avro",
)


def test_axe_finds_no_serious_fault_in_any_page(console: Console) -> None:
    wait_until(lambda: TRACE in trace_page(console), "the trace is there")
    with console.window() as window:
        for path in PATHS:
            check(window, path)
        assert window.dialogs == []
        assert "owned" not in window.page.title()


def test_pages_fit_a_phone_and_read_well_in_the_dark(console: Console) -> None:
    with console.window(is_phone=True, is_dark=True) as window:
        for path in PATHS:
            check(window, path, with_axe=path in PATHS[2::4])


def check(window: Window, path: str, *, with_axe: bool = True) -> None:
    response = window.page.goto(path)
    assert response is not None
    assert response.status == 200, path
    assert not window.is_wider_than_its_window(), path
    assert window.page.locator("main img, main script").count() == 0, path
    assert not with_axe or window.serious_faults() == [], path


STOPS: Final = "main a, main button, main select, main textarea, main input:not([type=hidden])"


def test_every_link_field_and_button_is_reached_by_the_tabulator(console: Console) -> None:
    with console.window() as window:
        page = window.page
        for path in PATHS:
            page.goto(path)
            wanted = page.locator(STOPS).count()
            reached = 0
            page.locator("#content").focus()
            for _ in range(wanted + page.locator("main [tabindex='0']").count()):
                page.keyboard.press("Tab")
                reached += page.evaluate("stops => document.activeElement.matches(stops)", STOPS)
            assert reached == wanted, path


def trace_page(console: Console) -> str:
    return console.ask("GET", f"/trace?record={TRACE}", headers=console.session())[2]


def test_delayed_records_are_counted_found_by_id_and_cancelled_by_keyboard(console: Console) -> None:
    with console.window() as window:
        page = window.page
        page.goto("/delayed")
        row = page.get_by_role("region", name="Delayed records by topic").get_by_role("row").last
        expect(row).to_contain_text(LATER)
        expect(row.locator("td").first).to_have_text("5")
        expect(row.locator("td").last).to_contain_text(re.compile("2[34] h"))
        page.get_by_label("Topic of the id").fill(LATER)
        page.get_by_label("Id", exact=True).fill("id-3")
        page.keyboard.press("Enter")
        expect(page.locator("article.record")).to_have_count(2)
        expect(page.locator("article.record").first).to_contain_text(HOSTILE)
        page.get_by_role("button", name="Cancel these records").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("status").first).to_contain_text("are cancelled")
        assert len(window.dialogs) == 1
        expect(page.locator("article.record")).to_have_count(0)
    shown = appliance("delayed", "list", LATER, "-b", console.broker.address, "--json").succeeded()
    assert sorted(each["id"] for each in json.loads(shown.text)["records"]) == ["id-0", "id-1", "id-2"]


def test_nothing_is_cancelled_in_a_topic_without_delays(console: Console) -> None:
    cookie = console.session()
    page = console.ask("GET", f"/delayed/record?topic={ORDERS}&id=x", headers=cookie)[2]
    assert "nothing can be cancelled" in page
    assert "Cancel these records" not in page


def test_a_dead_letter_shows_its_history_and_is_replayed_and_purged_after_a_dry_run(
    console: Console,
) -> None:
    with console.window() as window:
        page = window.page
        page.goto("/dead-letters")
        page.get_by_role("link", name=f"{GROUP} on {ORDERS}").click()
        rows = page.get_by_role("region", name="Dead letters").locator("tbody tr")
        expect(rows).to_have_count(3)
        page.get_by_label("Exception contains").fill("KeyError")
        page.get_by_role("button", name="Show").click()
        expect(rows).to_have_count(1)
        rows.get_by_role("link").click()
        history = page.get_by_role("region", name="History")
        expect(history).to_contain_text(f"{ORDERS}-0 at 0")
        expect(history).to_contain_text("KeyError")
        expect(history).to_contain_text(HOSTILE)
        page.get_by_role("link", name="Replay it: dry run").click()
        expect(page.get_by_role("main")).to_contain_text("1 dead letters are chosen")
        assert len(dead_letters(console)) == 3, "a dry run moves nothing"
        page.get_by_role("button", name="Replay 1 dead letters").click()
        expect(page.get_by_role("status").first).to_contain_text("1 dead letters were replayed")
        expect(rows).to_have_count(2)
        page.goto(f"/dead-letters/of?{OF}&key=dead-2")
        page.get_by_role("link", name="Purge these: dry run").click()
        page.get_by_role("button", name="Purge 1 dead letters").click()
        expect(page.get_by_role("status").first).to_contain_text("1 dead letters were purged")
    assert [each["key"] for each in dead_letters(console)] == ["dead-1"]
    assert read_keys(console, f"{ORDERS}.{GROUP}.retry") == ["dead-0"]


def read_keys(console: Console, topic: str) -> list[str]:
    """The keys of the records in a topic, from the first one until none comes for a second."""
    consumer = Consumer({"bootstrap.servers": console.broker.address, "group.id": "reads"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    until_s = time.monotonic() + PATIENCE_S
    while not found and time.monotonic() < until_s:
        found += [(each.key() or b"").decode() for each in consumer.consume(100, 1.0) if each.error() is None]
    consumer.close()
    return found


def test_the_audit_shows_buckets_delays_gaps_and_duplicates(console: Console) -> None:
    with console.window() as window:
        page = window.page
        page.goto("/audit")
        page.get_by_role("link", name=ORDERS).click()
        findings = page.locator("main ul").first
        wait_until(
            lambda: bool(page.reload()) and "missing: id 3 of till" in page.get_by_role("main").inner_text(),
            "the gap is found",
        )
        expect(findings).to_contain_text("duplicate: id 4 of till")
        table = page.get_by_role("region", name="Buckets")
        expect(table).to_contain_text(f"group {GROUP}")
        expect(page.get_by_role("img", name=re.compile("^Produced: 1 buckets"))).to_be_visible()
        assert page.locator("figure rect").count() >= 2
        page.goto(f"/audit?topic={ORDERS}&from=2020-01-01&to=2020-01-02")
        expect(page.get_by_role("status")).to_contain_text("Nothing was counted")
        response = page.goto(f"/audit?topic={ORDERS}&from=yesterday")
        assert response is not None
        assert response.status == 400


def test_a_trace_is_found_by_its_id_and_by_its_place(console: Console) -> None:
    wait_until(lambda: f"group {GROUP}" in trace_page(console), "the group has consumed the record")
    with console.window() as window:
        page = window.page
        for asked in (TRACE, f"{ORDERS}-0-0"):
            page.goto("/trace")
            page.get_by_label("Trace id").fill(asked)
            page.keyboard.press("Enter")
            expect(page.get_by_role("heading", name=f"Trace {TRACE}")).to_be_visible()
            steps = page.locator("table.timeline tbody th").all_inner_texts()
            assert steps[:2] == ["produced", "appended"]
            assert "consumed" in steps
            assert page.locator("table.timeline rect").count() == len(steps)
        for wrong, status in ((TRACE[::-1], 404), ("nonsense", 400), (f"{ORDERS}-0-²", 400)):
            response = page.goto(f"/trace?record={wrong}")
            assert response is not None
            assert response.status == status


def test_records_are_decoded_by_their_schemas(console: Console) -> None:
    console.create("typed", 1, 3)
    console.produce(
        "typed",
        [
            {"key": b"avro", "value": confluent_avro(7, {"id": 42, "name": HOSTILE})},
            {"key": b"protobuf", "value": confluent_protobuf(8, 43, "Zoë")},
            {"key": b"unknown", "value": b"\0\0\0\0\x09abc"},
            {"key": b"hostile", "value": b"\0\0\0\0\x07" + b"\xff" * 200},
        ],
    )
    with console.window() as window:
        page = window.page
        page.goto("/topic/messages?name=typed")
        record = {
            key: page.locator("article.record", has=page.get_by_text(key, exact=True))
            for key in ("avro", "protobuf", "unknown", "hostile")
        }
        expect(record["avro"]).to_contain_text('"id": 42')
        expect(record["avro"]).to_contain_text("Avro, schema 7: shop.Order")
        expect(record["protobuf"]).to_contain_text('"name": "Zoë"')
        expect(record["protobuf"]).to_contain_text("Protobuf, schema 8: shop.Order")
        expect(record["unknown"]).to_contain_text("000000  00 00 00 00 09")
        expect(record["hostile"]).to_contain_text("it does not fit schema 7")
        page.goto("/topic/messages?name=typed&form=avro&key=unknown")
        expect(page.locator("article.record")).to_contain_text("there is no schema 9")
        page.goto("/topic/messages?name=typed&form=protobuf&key=unknown")
        expect(page.locator("article.record")).to_contain_text("000000  00 00 00 00 09")


def test_the_log_is_live_and_shows_what_the_supervisor_says(console: Console) -> None:
    with console.window() as window:
        page = window.page
        page.goto("/logs?level=WARNING&process=supervisor")
        expect(page.locator("#log-state")).to_have_text("Live, the newest line first.")
        console.broker.kill_role("purgatory")
        expect(page.locator("#log tbody tr").first).to_contain_text(
            re.compile(r"supervisor.*purgatory \(pid \d+\) was killed by SIGKILL; restarted"),
            timeout=PATIENCE_S * 1000,
        )
        wait_until(console.broker.is_whole, "the purgatory is back")
        page.goto("/logs?process=supervisor&q=running+again")
        expect(page.locator("#log tbody tr").first).to_contain_text("purgatory is running again")
        page.goto("/logs?process=console")
        expect(page.locator("#log tbody")).to_contain_text("console at http://")
        page.goto("/logs?q=no line has this")
        expect(page.locator("#log tbody tr")).to_have_count(0)


def test_the_log_shows_every_kill_after_the_console_itself_was_killed(console: Console) -> None:
    killed = ("ioproc 0.0", "netproc 1", "controller", "ioproc 2.0", "console")
    for role in killed:
        console.broker.kill_role(role)
        wait_until(console.broker.is_whole, f"{role} is back")
    cookie = console.session()
    wait_until(lambda: console.ask("GET", "/logs", headers=cookie)[0] == 200, "the page of logs is there")

    def missing() -> list[str]:
        body = console.ask("GET", "/logs?process=supervisor", headers=cookie)[2]
        wanted = [re.compile(rf"{re.escape(role)} \(pid \d+\) was killed by SIGKILL") for role in killed]
        wanted += [re.compile(rf"{re.escape(role)} is running again") for role in killed]
        return [each.pattern for each in wanted if not each.search(body)]

    wait_until(lambda: not missing(), f"lines of the supervisor: {missing()}")


def test_pages_answer_while_workers_of_a_slot_die(console: Console) -> None:
    cookie = console.session()
    paths = (
        f"/delayed?topic={LATER}",
        f"/dead-letters/of?{OF}",
        f"/audit?topic={ORDERS}",
        f"/trace?record={TRACE}",
    )
    seen: list[int] = []
    for role in ("ioproc 0.0", "netproc 0", "ioproc 1.0"):
        console.broker.kill_role(role)
        until_s = time.monotonic() + 3
        while time.monotonic() < until_s:
            for path in paths:
                status, _, body = console.ask("GET", path, headers=cookie)
                seen.append(status)
                assert status in {200, 403, 404, 502}, body
        wait_until(console.broker.is_whole, f"{role} is back")
    assert seen.count(200) > len(seen) // 2
    for path in paths:
        wait_until(
            lambda path=path: console.ask("GET", path, headers=cookie)[0] == 200,  # type: ignore[misc]
            f"{path} is there again",
        )


def test_a_user_without_rights_sees_nothing_of_it(console: Console) -> None:
    cookie = console.session(READER)
    for path in ("/logs", "/logs/events"):
        assert console.ask("GET", path, headers=cookie)[0] == 403
    assert console.ask("GET", f"/audit?topic={ORDERS}", headers=cookie)[0] == 404
    assert console.ask("GET", f"/trace?record={TRACE}", headers=cookie)[0] == 404
    assert console.ask("GET", f"/dead-letters/of?{OF}", headers=cookie)[0] == 404
    assert LATER not in console.ask("GET", "/delayed", headers=cookie)[2]
    assert GROUP not in console.ask("GET", "/dead-letters", headers=cookie)[2]


def test_live_charts_end_when_the_right_is_taken_away(console: Console) -> None:
    rule = (f"User:{READER}", "describe", "--cluster", "-b", console.broker.address)
    appliance("acls", "allow", *rule).succeeded()
    with console.window(READER) as window:
        page = window.page
        wait_until(
            lambda: bool(page.goto("/")) and page.locator("#live").count() > 0,
            "the reader may see the charts",
        )
        expect(page.locator("#live")).to_have_text("Live, the last five minutes.")
        appliance("acls", "remove", *rule).succeeded()
        expect(page.locator("#live")).to_contain_text("Ended: this needs", timeout=PATIENCE_S * 1000)


def test_consume_decodes_as_the_console_does(console: Console, tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text(ORDER_AVSC)
    flags = ("-b", console.broker.address, "--schemas", str(tmp_path))
    lines = appliance("consume", "typed", "--json", *flags).succeeded().text.splitlines()
    values = [json.loads(line)["value"] for line in lines if line.startswith("{")]
    assert values[0] == {"id": 42, "name": HOSTILE}
    assert isinstance(values[1], str | dict)
    shown = appliance("consume", "typed", "-n", "1", "-p", "0", *flags).succeeded().text
    assert json.loads(shown.splitlines()[0])["id"] == 42
