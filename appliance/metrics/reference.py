"""Writes docs/metrics.md from the families: `python -m appliance.metrics.reference [FILE]`.

Without FILE the page goes to standard output. A test fails when the page in docs/ is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from appliance.config.sections.metrics import DEFAULT_PORT
from appliance.metrics import backup_page, families, kafka_page
from appliance.metrics.exposition import Family

_HEAD: Final = f"""\
# Metrics

This page is generated with `python -m appliance.metrics.reference docs/metrics.md`. Change `appliance/metrics/`, not
the page.

Set one option, and the appliance serves its metrics to Prometheus:

```
$ appliance serve --set metrics.listener=127.0.0.1:{DEFAULT_PORT}
$ curl http://127.0.0.1:{DEFAULT_PORT}/metrics
```

```yaml
scrape_configs:                            # prometheus.yml
  - job_name: appliance
    static_configs:
      - targets: ["127.0.0.1:{DEFAULT_PORT}"]
rule_files:
  - alerts.yml                             # appliance/metrics/share/alerts.yml
```

| path | what it answers |
|---|---|
| `/metrics` | the series below |
| `/metrics/kafka` | the same numbers under the names of Kafka's exporters |
| `/healthz` | 200 while the metrics process answers |
| `/readyz` | 200 if clients are served, else 503 with the reason |
| `/startupz` | 200 once the appliance has been ready; it stays so |

`/metrics` and `/metrics/kafka` use Prometheus' text format 0.0.4, or OpenMetrics 1.0 if the scraper prefers it (header
`Accept`).

`/healthz` looks at no disk and at no other process, so it does not fail under load. `/readyz` answers 200 if the
appliance has its metadata, if a process accepts connections, and if every partition with a leader is served. Replicas
may be behind. If the storage of a partition has failed, the appliance is still ready, because a restart would not help.

The package contains a dashboard for Grafana and alert rules for Prometheus: `appliance/metrics/share/dashboard.json`
and `alerts.yml`. `python -c "import appliance.metrics as m; print(m.__path__[0])"` prints where they are.

## OpenTelemetry

With `metrics.otlp.endpoint = http://127.0.0.1:4318`, the metrics process also sends the series of `/metrics` to the
collector's `/v1/metrics`, every `metrics.otlp.interval.ms`, as OTLP over HTTP in JSON. Names are those of this page
without `_total`. Counters are cumulative, and begin when the appliance started. A collector that does not answer costs
a line in the log. The next request then has the newer values. When the appliance stops, the metrics process sends the
last values, and waits for the collector for at most a second.

## Metrics of clients

With `metrics.client.telemetry = true`, Kafka clients push their own metrics to the broker (KIP-714). A subscription
says which metrics, and how often:

```
$ kafka-client-metrics.sh --bootstrap-server 127.0.0.1:9092 --alter --name producers \\
      --metrics org.apache.kafka.producer. --interval 60000
```

`appliance_client_metric` has a series for each metric of a client and each set of its attributes. One client can have
1,000 series, and all clients together `metrics.client.telemetry.series.max`. A client that is silent for three
intervals loses its series. A push of more than 4 MiB, decompressed, is dropped. Reading pushes takes a tenth of a core
at most.

Without the option, the broker does not advertise the two APIs, so clients push nothing. A client that asks all the same
gets UNSUPPORTED_VERSION.

## What it costs

A *metrics process* reads shared memory and formats the pages. No other process waits for it. Without `metrics.listener`
there is no such process, and no process counts for it. Each request then reads one attribute more.

With it, a network process counts in its own memory and writes to shared memory four times a second. It reads the clock
for one in 16 Produce and Fetch requests, and for every other request. A worker writes the sizes of its logs every 5
seconds. The metrics process sends the same page again for ten times the time that it took to build it, but for one
second at most. Therefore many scrapers cost little more than one.

`python -m benchmarks.micro.scrape` measures a page for 10,000 partitions in 1,000 topics, with 10 groups. The host has
two processors, and nothing else used them:

| page | processor time | bytes |
|---|---|---|
| `/metrics` | 32 ms | 1,068,239 |
| `/metrics/kafka` | 34 ms | 1,302,049 |

## Who may read it

The page has no authentication. It shows names of topics, groups and directories, and no records. Therefore the listener
must have a loopback address, unless you set `metrics.insecure`. To let other hosts read the metrics, put a proxy with
TLS in front of the listener. A request must name an address, `localhost`, or a name in `metrics.allowed.hosts`. So a
web page in a browser on this host cannot read the metrics. The process serves 32 connections. If one more client
connects, the process closes the connection that has made no progress for the longest time. A request must arrive within
5 seconds, and the answer must leave within 30.

## Rules

- Times are in seconds, sizes in bytes. Counters end with `_total`. They count from the start of the appliance, and do
  not fall when a process is killed and starts again. If a process is killed, the counts of its last quarter of a second
  can be lost.
- When a topic is deleted, its series end. The sums over the whole appliance still include its counts.
- `broker` is the number of a broker slot, and `process` a role as `appliance status` shows it, such as `netproc 1`.
- The `metrics.topics.max` oldest topics have series of their own. So have `metrics.groups.max` groups, as long as all
  groups together have at most 200,000 committed offsets. Two series count the topics and the groups without series.
- `metrics.partitions` adds series for each partition. For 1,000 topics with 8 partitions each, these are 64,000
  additional series.
- The metrics process asks the coordinators about groups every `metrics.groups.interval.ms`, over rings in shared
  memory. It stops three minutes after the last read of a page. The first page after such a pause shows the groups as
  they were before the pause.
- The lag of a group counts the partitions for which the group has committed an offset. `appliance_group_lag_records`
  compares with the high watermark, as other tools do. A consumer with `read_committed` cannot read behind an open
  transaction, so `appliance_group_stable_lag_records` compares with the last stable offset.
- Members, committed offsets and lags are those of the last whole round. A lag compares what was committed with where
  the partition ended in the same round. `appliance_metrics_group_round_age_seconds` says how old the round is.
- The age of a group (`appliance_group_lag_seconds`) is the time since the record was written that the group reads next.
  The time of that record is the time of the first record in the batch that holds the committed offset. In a topic with
  `message.timestamp.type=LogAppendTime` it is the time of the append. If retention has removed that record, the first
  record of the log counts. A group that has read everything has age 0. There is no sample if the batch has no time, or
  before the process has read the batch.
- The metrics process reads these times from the headers of batches. A read takes about 50 µs. In each 100 ms, the
  process reads for at most 2 ms. With thousands of groups and partitions, it reads them in turns. Between two reads,
  the age of a group that consumes keeps its value, and the age of a group that does not consume grows with the clock.
- `appliance_request_stage_duration_seconds` has these stages. `receive` goes from the first bytes of a request to its
  last, 0 where they come at once; the other stages, and the total, begin then. `queue` ends when a worker takes an
  operation of the request. `log` is the append, or the look-up of records. `replicate` is how long an answer then waits
  for followers, or for the disk with `durability = "fsync"`. These three are of Produce and Fetch, for each operation:
  a request for two partitions has two. `answer` ends when the answer is there. For a Fetch, this includes the wait for
  records. `send` ends when the answer has left, behind earlier answers of its connection.
- `appliance_process_proportional_bytes` adds up to the memory of the whole appliance. The kernel shows it to the
  supervisor alone, which looks at one process after the other when the metrics process asks, at most every 30 seconds.
  `appliance_process_open_files` and the two series of disks have the same age. They do not count what a process reads
  or writes between the last look and its end.
- `appliance_delayed_…`, `appliance_retry_…`, `appliance_message_audit_…` and `appliance_trace_…` need
  `services.processes`. Lateness begins when a record is due, even if the appliance does not run at that time.
  `appliance_console_…` needs `console.listener`.

The appliance does not use Prometheus' client library for Python. With several processes, this library keeps a file for
each process that ever ran, and every scrape reads all of these files. Only the project's tests use this library, to
parse the pages.

## Series of `/metrics`

"""

_KAFKA: Final = """
## Series of `/metrics/kafka`

The page has two families of names for the same numbers: those of kafka_exporter, and those of Kafka's JMX beans as the
usual rules of jmx_exporter spell them. The series differ from the originals as follows:

- One page shows all broker slots. If Kafka has a series for each broker, this series has the label `broker`.
- As in JMX, the series of `kafka_server_brokertopicmetrics_…` without the label `topic` is the sum of all topics. A
  `sum()` over both counts twice.
- Without `metrics.partitions`, a series with a label `partition` is the sum over the topic, and lacks this label. Node
  ids of leaders have no sum, so these series exist only with the option.
- Quantiles are for the last five minutes, and come from the buckets of a histogram. In JMX they come from a sample.
- `Fetch` and `FetchConsumer` are the same, because followers send no Fetch requests here.
- Queue, local and remote times are of Produce and Fetch, for each operation of a worker.
- `process_…` is the sum of all processes of the appliance. Memory and descriptors are at most 30 s old, and missing
  before the first look. There is nothing about a Java virtual machine.

"""


_BACKUP: Final = """
## Series of backups

No process of the appliance takes backups. `appliance backup` writes these series to a file that the textfile collector
of Prometheus' node_exporter reads:

```
$ appliance backup /var/lib/appliance /mnt/backups --metrics /var/lib/node_exporter/appliance_backup.prom
```

Use one file for each target. If an attempt fails, the series of the last success stay.

"""


def reference_page() -> str:
    """The whole page."""
    return "".join(_page())


def _page() -> Iterator[str]:
    yield _HEAD
    yield from _table(families.ALL)
    yield _KAFKA
    yield from _table(kafka_page.ALL)
    yield _BACKUP
    yield from _table(backup_page.ALL)
    yield f"\n{len(families.ALL)} names of the appliance, {len(kafka_page.ALL)} of Kafka's exporters.\n"


def _table(known: Iterable[Family]) -> Iterator[str]:
    yield "| name | type | labels | unit | meaning |\n|---|---|---|---|---|\n"
    for each in known:
        labels = ", ".join(f"`{label}`" for label in each.labels) or "none"
        yield f"| `{each.name}` | {each.kind} | {labels} | {each.unit or 'none'} | {each.help} |\n"


def main(arguments: list[str]) -> int:
    """Writes the page to the file named in `arguments`, or to standard output."""
    if arguments:
        Path(arguments[0]).write_text(reference_page(), encoding="utf-8")
    else:
        sys.stdout.write(reference_page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
