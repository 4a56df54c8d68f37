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

| path | answer |
|---|---|
| `/metrics` | the series of this page |
| `/metrics/kafka` | the same numbers under the names of Kafka's exporters |
| `/healthz` | 200 while the metrics process answers |
| `/readyz` | 200 if the appliance serves clients, otherwise 503 with the reason |
| `/startupz` | 503 until the appliance is ready for the first time, then always 200 |

`/metrics` and `/metrics/kafka` use Prometheus' text format 0.0.4, or OpenMetrics 1.0 if the scraper prefers it (header
`Accept`).

`/healthz` checks no disk and no other process, so it does not fail under load. `/readyz` answers 200 if the appliance
has its metadata, if a process accepts connections, and if every partition with a leader is served. Followers may be out
of sync. `/readyz` also answers 200 if the storage of a partition has failed, because a restart would not help.

The package contains a dashboard for Grafana and alert rules for Prometheus: `appliance/metrics/share/dashboard.json`
and `alerts.yml`. `python -c "import appliance.metrics as m; print(m.__path__[0])"` prints the directory that contains
`share`.

## OpenTelemetry

With `metrics.otlp.endpoint = http://127.0.0.1:4318`, the metrics process also sends the series of `/metrics` to an
OpenTelemetry collector. The process sends the series to the path `/v1/metrics` every `metrics.otlp.interval.ms`, as
OTLP over HTTP in JSON. The names are the names on this page without `_total`. Counters are cumulative, and begin when
the appliance started. If the collector does not answer, the metrics process logs a line, and the next request has newer
values. When the appliance stops, the metrics process sends the last values, and waits for the collector for at most a
second.

## Metrics of clients

With `metrics.client.telemetry = true`, Kafka clients push their own metrics to the broker (KIP-714). A subscription
sets which metrics clients push, and how often:

```
$ kafka-client-metrics.sh --bootstrap-server 127.0.0.1:9092 --alter --name producers \\
      --metrics org.apache.kafka.producer. --interval 60000
```

The metric `appliance_client_metric` has a series for each metric of a client and each set of its attributes. One client
can have at most 1,000 series. All clients together can have at most `metrics.client.telemetry.series.max` series. If a
client pushes nothing for three intervals, the metrics process removes its series. The metrics process drops a push of
more than 4 MiB after decompression. Reading pushes takes at most a tenth of a core.

Without `metrics.client.telemetry`, the broker does not advertise the two APIs of KIP-714, so clients push nothing. A
client that still sends such a request gets UNSUPPORTED_VERSION.

## Cost

A *metrics process* reads shared memory and formats the pages. No other process waits for the metrics process. Without
`metrics.listener` there is no metrics process, and the other processes do not count for it. Each request then only
reads one more attribute.

With `metrics.listener`, a network process counts in its own memory and writes the counts to shared memory four times a
second. It reads the clock for one in 16 Produce and Fetch requests, and for each request of the other APIs. A worker
writes the sizes of its logs every 5 seconds. The metrics process keeps each page for ten times the time that it took to
build the page, but at most for one second. Therefore many scrapers cost little more than one scraper.

`python -m benchmarks.micro.scrape` measures a page for 10,000 partitions in 1,000 topics, with 10 groups. We measured
on a host with two processors and no other load:

| page | processor time | bytes |
|---|---|---|
| `/metrics` | 32 ms | 1,068,239 |
| `/metrics/kafka` | 34 ms | 1,302,049 |

`python -m benchmarks.micro.metrics_cost` measures small requests with and without the option, in 400 turns. The table
shows the processor time of the network process and the worker for one request, and the quartiles of the ratio. The
build was compiled, and the host was quiet:

| request | without metrics | with metrics | ratio |
|---|---|---|---|
| Produce, one record of 100 bytes | 26.5 µs | 27.3 µs | 1.03 (1.03 to 1.04) |
| Fetch, one batch | 45.6 µs | 46.4 µs | 1.02 (1.02 to 1.02) |

The cost is for each request and not for each record, so it hardly matters if clients send batches.

## Who may read the metrics

The metrics page has no authentication. The page shows names of topics, groups and directories, and no records.
Therefore the listener must have a loopback address, unless you set `metrics.insecure`. To let other hosts read the
metrics, put a proxy with TLS in front of the listener. The header `Host` of a request must have an address,
`localhost`, or a name in `metrics.allowed.hosts`. So a web page of another site in a browser on this host cannot read
the metrics. The metrics process serves 32 connections. If one more client connects, the metrics process closes the
connection that has made no progress for the longest time. A request must arrive within 5 seconds, and the client must
read the answer within 30 seconds.

## Rules

- Times are in seconds, sizes in bytes. The names of counters end with `_total`. Counters start at the start of the
  appliance, and do not decrease when a process is killed and starts again. If a process is killed, its counts of the
  last 0.25 s can be lost.
- When a topic is deleted, its series end. The sums over the whole appliance still include the counts of the deleted
  topic.
- The label `broker` is the number of a broker slot. The label `process` is a role as in `appliance status`, such as
  `netproc 1`.
- The `metrics.topics.max` oldest topics have their own series. The first `metrics.groups.max` groups by name also have
  their own series, as long as all groups together have at most 200,000 committed offsets. Two series count the other
  topics and groups.
- The option `metrics.partitions` adds series for each partition. For 1,000 topics with 8 partitions each, these are
  64,000 additional series.
- The metrics process asks the coordinators about groups every `metrics.groups.interval.ms`, over rings in shared
  memory. The metrics process stops asking three minutes after the last request for a page. The first page after such a
  pause shows the groups as they were before the pause.
- The lag of a group is the sum over the partitions for which the group has committed an offset.
  `appliance_group_lag_records` is the difference from the high watermark, as in other tools. A consumer with
  `read_committed` cannot read behind an open transaction, so `appliance_group_stable_lag_records` is the difference
  from the last stable offset.
- Members, committed offsets and lags come from the last complete round of requests to the coordinators. A lag compares
  the committed offset with the end of the partition in the same round. `appliance_metrics_group_round_age_seconds` is
  the age of this round.
- The age of a group (`appliance_group_lag_seconds`) is the time since the write of the next record that the group will
  read. The metrics process uses the timestamp of the first record in the batch with the committed offset. In a topic
  with `message.timestamp.type=LogAppendTime` it uses the time of the append. If retention has removed this record, the
  metrics process uses the first record of the log. A group that has read all records has the age 0. The series has no
  sample if the batch has no timestamp, or before the metrics process has read the batch.
- The metrics process reads the times for the ages of groups from the headers of batches. Reading one header takes about
  50 µs. In each 100 ms, the metrics process reads for at most 2 ms. With thousands of groups and partitions, the
  metrics process reads a part of the headers each time. Between two reads, the age of a group that consumes stays the
  same, and the age of another group increases with the clock.
- `appliance_request_stage_duration_seconds` has six stages. The stage `receive` goes from the first byte of a request
  to its last byte. The other stages, and the total time, begin at the last byte. The stage `queue` ends when a worker
  takes an operation of the request. The stage `log` is the append, or the look-up of records. In the stage `replicate`,
  an answer waits for followers, or for the disk with `durability = "fsync"`. The stages `queue`, `log` and `replicate`
  exist only for Produce and Fetch. They count each operation: a request for two partitions has two operations. The
  stage `answer` ends when the broker has made the answer. For a Fetch, this stage includes the wait for records. The
  stage `send` ends when the last byte of the answer is sent, after earlier answers of the connection.
- The sum of `appliance_process_proportional_bytes` over all processes is the memory of the whole appliance. Only the
  supervisor may read these values from the kernel. The supervisor reads these values when the metrics process asks, at
  most every 30 seconds. The same is true for `appliance_process_open_files`,
  `appliance_process_disk_read_bytes_total` and `appliance_process_disk_written_bytes_total`. The last two do not count
  what a process reads from disks or writes to disks after the supervisor's last reading of this process.
- `appliance_delayed_…`, `appliance_retry_…`, `appliance_message_audit_…` and `appliance_trace_…` need
  `services.processes`. The lateness of a delayed record begins when the record is due, even if the appliance does not
  run at that time. `appliance_console_…` needs `console.listener`.

The appliance does not use Prometheus' client library for Python. With several processes, this library keeps a file for
each process that ever ran, and every scrape reads all of these files. Only the project's tests use this library, to
parse the pages.

## Series of `/metrics`

"""

_KAFKA: Final = """
## Series of `/metrics/kafka`

The page shows the same numbers under two families of names: the names of kafka_exporter, and the names that
jmx_exporter usually gives Kafka's JMX beans. The series differ from the originals as follows:

- One page shows all broker slots. If Kafka has one series in each broker, the series has the label `broker` here.
- As in JMX, the series of `kafka_server_brokertopicmetrics_…` without the label `topic` is the sum of all topics.
  Therefore a `sum()` over all series counts each topic twice.
- Without `metrics.partitions`, a series with a label `partition` is the sum over the topic, and lacks this label. Node
  ids of leaders have no sum, so these series exist only with `metrics.partitions`.
- Quantiles are for the last five minutes, and come from the buckets of a histogram. In JMX, quantiles come from a
  sample.
- `Fetch` and `FetchConsumer` are the same, because followers of the appliance send no Fetch requests.
- Queue, local and remote times exist only for Produce and Fetch. They count each operation of a worker.
- `process_…` is the sum of all processes of the appliance. Memory and descriptors are at most 30 s old, and missing
  before the first reading. There are no series of a Java virtual machine.

"""


_BACKUP: Final = """
## Series of backups

No process of the appliance takes backups. `appliance backup` writes these series to a file that the textfile collector
of Prometheus' node_exporter reads:

```
$ appliance backup /var/lib/appliance /mnt/backups --metrics /var/lib/node_exporter/appliance_backup.prom
```

Use a separate file for each target of backups. If a backup fails, the file keeps the series of the last success.

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
