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

This page is generated with `python -m appliance.config.reference docs/configuration.md`. Change the declarations in
`appliance/config/`, not the page.

Set options in a TOML file (`appliance serve --config appliance.toml`) or with flags. A flag overrides the file. You can
give every option as `--set NAME=VALUE`. If a name is unknown, the appliance does not start, and its error suggests the
nearest known name. If a value is out of range, the appliance does not start either.

```toml
"data.dir" = "/var/lib/appliance"          # a relative path is relative to this file
"port" = 9092
"slots" = 1
"network.pool.bytes" = "256 MiB"           # or a number of bytes; units: B kB MB GB TB KiB MiB GiB TiB
"connections.max.idle.ms" = "10 min"       # or a number of milliseconds; units: ms s min h d
"log.retention.hours" = 72                 # Kafka's broker-wide names set defaults for topics
"min.insync.replicas" = 1
```

The appliance accepts Kafka's `num.network.threads` as `network.processes`, and Kafka's `num.io.threads` as
`io.workers`. It refuses every other setting of Apache Kafka that is not on this page, because it does not use that
setting. DescribeConfigs lists the refused settings as read-only, with Kafka's defaults. Kafka's own file
`server.properties` is not a TOML file. If you pass it, the appliance reports an error.

Write names in quotes, because TOML reads an unquoted dot as the beginning of a table. You can also write tables. This
does not work for a name that is both a value and a table, such as `max.connections`, because `max.connections.per.ip`
is an option too.

The column *acts* shows when a new value takes effect. You can change an option with `at once` while the appliance runs.
"""

_SECTION_HEADS: Final = {
    "": ("Main options", "Most users set only these options."),
    "listener": (
        "Listeners",
        "These options say where clients come in, and what protects their connections ([access.md](access.md)).",
    ),
    "ssl": (
        "TLS",
        "These options are for the listeners whose security protocol is SSL or SASL_SSL ([access.md](access.md)).",
    ),
    "sasl": (
        "SASL",
        "These options are for the listeners whose security protocol is SASL_PLAINTEXT or SASL_SSL "
        "([access.md](access.md#sasl)).",
    ),
    "oauthbearer": (
        "Tokens of an identity provider",
        "These options are for the SASL mechanism OAUTHBEARER ([access.md](access.md#oauthbearer)).",
    ),
    "network": (
        "Network",
        "These options are for the acceptor and the network processes, which hold the connections of clients.",
    ),
    "io": ("I/O workers", "An I/O worker is a process that owns partitions and writes their records."),
    "broker": ("Broker", "These options are Kafka's broker settings, and limits of the whole appliance."),
    "group": ("Consumer groups", "These options set limits and times of consumer groups."),
    "offsets": (
        "Committed offsets",
        "These options are for the topic that stores committed offsets, and for the time that it keeps them.",
    ),
    "transaction": (
        "Transactions",
        "These options set limits and times of transactions. Some are for the topic that stores transactions.",
    ),
    "metadata": ("Metadata", "These options say where topics, leaders and settings are stored."),
    "zeromq": (
        "ZeroMQ",
        "These options set the listeners for ZeroMQ clients and the limits of their sessions ([zeromq.md](zeromq.md)).",
    ),
    "shared_memory": (
        "Shared memory",
        "These options are for lanes of clients on this host ([shared-memory.md](shared-memory.md)).",
    ),
    "access": (
        "Access",
        "These options say whether requests are checked against ACLs ([acls.md](acls.md)).",
    ),
}

_TOPIC_HEAD: Final = """
## Topic settings

The table lists all topic settings of Apache Kafka 4.3. Set one on a topic with any Kafka tool or with
`appliance topics create TOPIC --config NAME=VALUE`. To change its default for all topics, set its broker-wide name in
the configuration file.
If a setting has several broker-wide names, the first one that is set is used. The Kafka protocol accepts only plain
numbers. `appliance topics create` and `appliance configs set` also accept units.

Any Kafka tool can change these settings while the appliance runs: on a topic, or with the first broker-wide name on one
broker or on all brokers. Such a change is kept after a restart and overrides the file.

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
