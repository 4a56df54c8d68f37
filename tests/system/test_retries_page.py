"""The programs of docs/retries.md, as a reader pastes them, and what its commands say."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.apache_kafka import compiled, java
from tests.support.broker import Appliance
from tests.support.pasted import commands_of
from tests.system.retrying import (
    PATIENCE_S,
    command,
    create,
    headers_of,
    listed,
    producer,
    read,
    sent,
    started,
)

PAGE: Final = (Path(__file__).parent.parent.parent / "docs" / "retries.md").read_text()
PROGRAMS: Final = {
    part.partition("\n")[0]: block[1]
    for part in PAGE.split("\n### ")
    if (block := re.search(r"^```python\n(.*?)^```$", part, re.MULTILINE | re.DOTALL))
}
ASYNCIO: Final = re.findall(r"^In asyncio:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
JAVA: Final = re.findall(r"^```java\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    made = started(tmp_path_factory.mktemp("page") / "data")
    yield made
    made.stop()


def fails_until_it_is_dead(broker: Appliance, group: str, topic: str, program: list[str]) -> None:
    """Run a program that hands back what is no JSON, until the record is dead; what is JSON it must not hand back."""
    client = producer(broker)
    for value in (b"no JSON", b"{}"):
        sent(client, topic, value, [("mine", b"1")], key=b"k")
    running = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        (dead,) = read(broker, f"{topic}.{group}.dlq", 1, more_s=0.5)
    except AssertionError as missing:
        running.kill()
        raise AssertionError(f"{missing}; the program said {running.communicate()[0][-3000:]}") from None
    finally:
        running.kill()
        running.wait()
    said = headers_of(dead)
    assert (dead.value(), dead.key(), said["mine"]) == (b"no JSON", b"k", "1")
    assert said["__dlq.errors.topic"] == topic
    assert said["__dlq.errors.delivery.count"] == "3"
    assert said["__dlq.errors.exception"]
    assert said["__dlq.errors.message"]
    again = [headers_of(each)["retry.attempts"] for each in read(broker, f"{topic}.{group}.retry", 2)]
    assert again == ["1", "2"]


@pytest.mark.parametrize("name", ["kafka-python", "confluent-kafka", "The native client", "asyncio"])
def test_a_python_program_of_the_page_works_as_it_is_pasted(
    broker: Appliance, name: str, tmp_path: Path
) -> None:
    text = ASYNCIO[0] if name == "asyncio" else PROGRAMS[name]
    group = f"billing-{name.replace(' ', '-')}"
    topic = f"orders-{group}"
    create(broker, topic, group)
    program = tmp_path / "program.py"
    text = text.replace("orders.billing", f"{topic}.{group}").replace('"orders"', f'"{topic}"')
    program.write_text(text.replace('"billing"', f'"{group}"').replace("localhost:9092", broker.address))
    fails_until_it_is_dead(broker, group, topic, [sys.executable, str(program)])


@pytest.mark.slow
def test_the_java_program_of_the_page_works_as_it_is_pasted(broker: Appliance, tmp_path: Path) -> None:
    create(broker, "orders", "billing")
    source = tmp_path / "Billing.java"
    source.write_text(JAVA[0].replace("localhost:9092", broker.address))
    fails_until_it_is_dead(broker, "billing", "orders", [*java(classes=compiled(source)), "Billing"])


def test_the_commands_of_the_page_work_in_their_order(broker: Appliance) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("orders", 2, 1)])["orders"].exception(PATIENCE_S)  # it may be there
    for each in commands_of(PAGE):
        words = shlex.split(each.text)
        assert words[0] == "appliance"
        command(broker, *words[1:])
    found = listed(broker, "retries", "describe", "billing", "orders")
    assert (found["levels"], found["max"]) == (["5s", "10s", "30s"], 5)
    assert (found["retry_topic"], found["dead_letter_topic"]) == (
        "orders.billing.retry",
        "orders.billing.dlq",
    )
    for topic in (found["retry_topic"], found["dead_letter_topic"]):
        assert f"`{topic}`" in PAGE
