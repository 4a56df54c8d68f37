"""Writes docs/configuration.md from the declarations: `python -m appliance.config.reference [FILE]`.

Without FILE the page goes to standard output. A test fails when the page in docs/ is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from appliance.config.declaration import INT64_MAX, Declaration, text_of
from appliance.config.option import declared_fields
from appliance.config.settings import SECTIONS, Settings
from appliance.config.topic_configs import BROKER_WIDE, topic_config_declarations

_HEAD: Final = """\
# Configuration

This page is written by `python -m appliance.config.reference docs/configuration.md`: change the declarations,
not the page.

Options come from one TOML file (`appliance serve --config appliance.toml`) and from flags; a flag wins. Every
option may be given as `--set NAME=VALUE`. A name that does not exist stops the start and is answered with the
nearest one that does; so does a value out of range.

```toml
"data.dir" = "/var/lib/appliance"          # a relative path starts at this file
"port" = 9092
"slots" = 1
"network.pool.bytes" = "256 MiB"           # or a plain number of bytes; B kB MB GB TB KiB MiB GiB TiB
"connections.max.idle.ms" = "10 min"       # or a plain number of milliseconds; ms s min h d
"log.retention.hours" = 72                 # Kafka's broker-wide defaults of the topic settings
"min.insync.replicas" = 1
```

`num.network.threads` and `num.io.threads` are taken as `network.processes` and `io.workers`. All other settings of
Apache Kafka that are not on this page are refused, because nothing reads them; DescribeConfigs shows them read-only,
with Kafka's defaults. Kafka's own `server.properties` is no TOML and is refused as what it is.

Names are quoted because TOML would otherwise read the dots as tables. Tables work too, as long as no name is
both a value and a table (`max.connections` beside `max.connections.per.ip`).
"""

_SECTION_HEADS: Final = {
    "": ("Where and how many", "What most people set."),
    "network": ("Network", "The acceptor and the network processes."),
    "io": ("I/O workers", "The processes that own the leader partitions."),
    "broker": ("Broker", "Kafka's broker settings, and the limits of the appliance as a whole."),
    "group": ("Consumer groups", "What members of groups may ask for, and how long a group waits for them."),
    "offsets": ("Committed offsets", "The topic that they lie in, and how long they are kept."),
    "metadata": ("Metadata", "Where topics, leaders and settings are kept."),
}

_TOPIC_HEAD: Final = """
## Topic settings

Every topic setting of Apache Kafka 4.3. Set one on a topic with any Kafka tool or with
`appliance topics create TOPIC --config NAME=VALUE`, or for all topics by its broker-wide name in the file.
Where a setting has several broker-wide names, the first one that is set wins. Over the wire values are plain
numbers, as with Kafka; `appliance topics create` and `appliance configs set` turn units into them. All of it can
change while the appliance runs, with any Kafka tool: a setting on its topic, and its first broker-wide name on one
broker or on all. What is set so is kept over restarts and wins over the file.

| setting | broker-wide | default | takes | acts | meaning |
|---|---|---|---|---|---|
"""


def reference_page() -> str:
    """The whole page."""
    return "".join(_page())


def _page() -> Iterator[str]:
    yield _HEAD
    for section, of in {"": Settings, **SECTIONS}.items():
        title, sentence = _SECTION_HEADS[section]
        yield f"\n## {title}\n\n{sentence}\n\n"
        yield from _table(declaration for _, declaration in declared_fields(of))
    yield _TOPIC_HEAD
    for topic in topic_config_declarations():
        wide = ", ".join(f"`{synonym.name}`" for synonym in topic.synonyms) or "none"
        yield (
            f"| `{topic.name}` | {wide} | {_default(topic)} | {topic.allowed()} "
            f"| {topic.effect.value} | {topic.doc} |\n"
        )
    names = sum(1 for _ in BROKER_WIDE)
    yield f"\n{len(topic_config_declarations())} settings, {names} broker-wide names.\n"


def _table(declarations: Iterable[Declaration]) -> Iterator[str]:
    yield "| option | default | takes | acts | meaning |\n|---|---|---|---|---|\n"
    for one in declarations:
        yield f"| `{one.name}` | {_default(one)} | {one.allowed()} | {one.effect.value} | {one.doc} |\n"


def _default(declaration: Declaration) -> str:
    if declaration.default == INT64_MAX:
        return "no limit (2⁶³ - 1)"
    text = text_of(declaration.default)
    return f"`{text}`" if text else "none"


def main(arguments: list[str]) -> int:
    """Writes the page to the file named in `arguments`, or to standard output."""
    if arguments:
        Path(arguments[0]).write_text(reference_page(), encoding="utf-8")
    else:
        sys.stdout.write(reference_page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
