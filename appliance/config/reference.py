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
from appliance.config.topic_configs import topic_config_declarations
from appliance.config.topic_defaults import BROKER_WIDE

_HEAD: Final = """\
# Configuration

This page is generated with `python -m appliance.config.reference docs/configuration.md`. Change the declarations in
`appliance/config/`, not the page.

Set options in a TOML file (`appliance serve --config appliance.toml`) or with flags. A flag overrides the file. You can
give every option as `--set NAME=VALUE`. If a name is unknown or a value is out of range, the appliance reports an error
and does not start. The error for an unknown name suggests the nearest known name.

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
`io.workers`. Apart from these two names, the file and the flags accept only the settings on this page. Three more
settings belong to a single slot: `slot.stopped`, `leader.replication.throttled.rate` and
`follower.replication.throttled.rate`. You can set these three while the appliance runs ([slots.md](slots.md)), but not
in the file. DescribeConfigs lists all other settings of Apache Kafka as read-only, with Kafka's defaults. Kafka's
own file `server.properties` is not a TOML file. If you pass this file, the appliance reports an error.

Write the names of options in quotes, because TOML reads an unquoted dot as the beginning of a table. You can also write
tables, with one exception. In TOML, `max.connections` cannot have a value and also be the table of
`max.connections.per.ip`. Therefore write these two names in quotes.

The column *takes* shows the values that an option accepts. The column *acts* shows when a new value takes effect. If
the column shows `at once`, you can change the option while the appliance runs.
"""

_SECTION_HEADS: Final = {
    "": ("Main options", "Most users set only these options."),
    "listener": (
        "Listeners",
        "These options set the addresses to which clients connect, and how these connections are protected "
        "([access.md](access.md)).",
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
    "delegation_tokens": (
        "Delegation tokens",
        "These options are for tokens from the broker with which clients log in instead of with a password "
        "([access.md](access.md#delegation-tokens)).",
    ),
    "network": (
        "Network",
        "These options are for the connections of clients. The acceptor is the process that accepts connections. "
        "Network processes read requests and write responses.",
    ),
    "io": ("I/O workers", "An I/O worker is a process that owns partitions and writes their records."),
    "broker": (
        "Broker",
        "Most of these options are broker settings of Kafka. The others set limits of the whole appliance.",
    ),
    "group": ("Consumer groups", "These options set limits and times of consumer groups."),
    "offsets": (
        "Committed offsets",
        "These options are for committed offsets and for the topic that stores them, `__consumer_offsets`.",
    ),
    "transaction": (
        "Transactions",
        "These options are for transactions and for the topic that stores their states, `__transaction_state`.",
    ),
    "metadata": ("Metadata", "These options set where the appliance stores topics, leaders and settings."),
    "zeromq": (
        "ZeroMQ",
        "These options set the listeners for ZeroMQ clients and the limits of their sessions ([zeromq.md](zeromq.md)).",
    ),
    "shared_memory": (
        "Shared memory",
        "A lane is memory that the broker shares with one client on the same host "
        "([shared-memory.md](shared-memory.md)).",
    ),
    "access": (
        "Access",
        "These options set whether the broker checks requests against ACLs ([acls.md](acls.md)).",
    ),
    "audit": (
        "Audit journal",
        "These options set what the audit journal records, and how many entries it keeps "
        "([audit-log.md](audit-log.md)).",
    ),
    "metrics": (
        "Metrics",
        "These options set the address of the metrics page, and the number of its series "
        "([metrics.md](metrics.md)).",
    ),
    "console": (
        "Console",
        "These options set the address of the console, and its limits ([console.md](console.md)).",
    ),
    "services": (
        "Services",
        "These options enable services such as delayed delivery, and set their levels and limits "
        "([delayed-delivery.md](delayed-delivery.md)).",
    ),
    "logging": ("Log", "These options decide what the processes log ([logs.md](logs.md))."),
}

_TOPIC_HEAD: Final = """
## Topic settings

The table lists all topic settings of Apache Kafka 4.3. To set one of them on a topic, use any Kafka tool or
`appliance topics create TOPIC --config NAME=VALUE`. To change the default for all topics, set the *broker-wide* name of
the setting in the configuration file. Some settings have several broker-wide names. If you set several names, the
appliance uses the first name in the list. The Kafka protocol accepts only plain numbers. `appliance topics create` and
`appliance configs set` also accept units.

Any Kafka tool can change these settings while the appliance runs. On a topic, use the name of the
setting. On one broker, or on all brokers, use the first broker-wide name. A change by a tool stays in effect after a
restart, and overrides the configuration file.

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
