"""The metrics process (docs/metrics.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.config.collector_url import check_collector_url
from appliance.config.http_address import is_loopback, parse_http_address
from appliance.config.option import check_fields, option
from appliance.errors import ConfigurationError

DEFAULT_PORT: Final = 9644
"""The port in every example. The option has no default, because two appliances on a host would claim the same one."""


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where the metrics page is, and how much it may hold."""

    listener: str | None = option(
        None,
        "metrics.listener",
        doc=f"Address of the metrics page, as HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}. Without this option, there "
        "is no metrics process. The page has no authentication, so an address that other hosts can reach also needs "
        "metrics.insecure. See docs/metrics.md.",
    )
    insecure: bool = option(
        False,
        "metrics.insecure",
        doc="Whether metrics.listener may be an address that other hosts can reach. Anybody who can "
        "connect to this address can read the names of topics and groups, and all counters.",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "metrics.allowed.hosts",
        doc="Host names, separated by commas, under which browsers and scrapers may request the metrics "
        "page. IP addresses and localhost are always allowed. The metrics process rejects a request with "
        "any other name, so that no web page can read the metrics through a user's browser.",
    )
    topics_max: int = option(
        1000,
        "metrics.topics.max",
        unit="topics",
        minimum=0,
        maximum=100_000,
        doc="Maximum number of topics with their own series. The topics that were created first have "
        "series. The series of the whole appliance include all topics.",
    )
    partitions: bool = option(
        False,
        "metrics.partitions",
        doc="Whether the metrics pages also have series for each partition of the topics with series.",
    )
    groups_max: int = option(
        1000,
        "metrics.groups.max",
        unit="groups",
        minimum=0,
        maximum=100_000,
        doc="Maximum number of consumer groups with their own series, in the order of their names. With 0, "
        "the metrics process sends no requests to the coordinators.",
    )
    groups_interval_ms: int = option(
        15_000,
        "metrics.groups.interval.ms",
        unit="ms",
        minimum=1000,
        maximum=3_600_000,
        doc="Interval at which the metrics process asks the coordinators for committed offsets. Three "
        "minutes after the last request for the page, the metrics process stops asking.",
    )

    client_telemetry: bool = option(
        False,
        "metrics.client.telemetry",
        doc="Whether clients may push their own metrics (KIP-714). The metrics page then shows these "
        "metrics. Java clients and librdkafka push their metrics if a subscription (config resource "
        "CLIENT_METRICS) matches them. The option needs metrics.listener and the package "
        "opentelemetry-proto. See docs/metrics.md.",
    )
    client_telemetry_max_bytes: int = option(
        1 << 20,
        "telemetry.max.bytes",
        unit="bytes",
        minimum=1,
        maximum=64 << 20,
        doc="Maximum compressed size of one push of a client's metrics.",
    )
    client_series_max: int = option(
        10_000,
        "metrics.client.telemetry.series.max",
        unit="series",
        minimum=0,
        maximum=1_000_000,
        doc="Maximum number of series of all clients on the metrics page. The appliance drops further "
        "series, and counts the dropped series.",
    )

    otlp_endpoint: str = option(
        "",
        "metrics.otlp.endpoint",
        doc="URL of a collector that takes OpenTelemetry metrics over HTTP, such as http://127.0.0.1:4318. "
        "The metrics process sends the series of the page /metrics to URL/v1/metrics. If the collector "
        "does not answer, the next request has newer values. If the option is empty, the process sends "
        "nothing. The option needs metrics.listener.",
    )
    otlp_interval_ms: int = option(
        60_000,
        "metrics.otlp.interval.ms",
        unit="ms",
        minimum=1000,
        maximum=3_600_000,
        doc="Time between two requests to metrics.otlp.endpoint.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        check_collector_url("metrics.otlp.endpoint", self.otlp_endpoint)
        if self.otlp_endpoint and self.listener is None:
            raise ConfigurationError(
                f"metrics.otlp.endpoint = {self.otlp_endpoint!r}: there is no metrics process that could send:"
                " set metrics.listener"
            )
        if self.client_telemetry and self.listener is None:
            raise ConfigurationError(
                "metrics.client.telemetry = true: there is no metrics process that could take what clients push:"
                " set metrics.listener"
            )
        if self.listener is None:
            return
        if not self.is_local and not self.insecure:
            raise ConfigurationError(
                f"metrics.listener = {self.listener!r}: other hosts could read the metrics without authentication:"
                " use an address of loopback, or set metrics.insecure = true"
            )

    @property
    def is_on(self) -> bool:
        """Whether there is a metrics process."""
        return self.listener is not None

    @property
    def takes_telemetry(self) -> bool:
        """Whether clients may push their metrics."""
        return self.client_telemetry and self.is_on

    @property
    def address(self) -> tuple[str, int]:
        """Host, without brackets, and port of the listener, which there must be."""
        return parse_http_address("metrics.listener", self.listener or "", example_port=DEFAULT_PORT)

    @property
    def is_local(self) -> bool:
        """Whether only this host can reach the listener."""
        return is_loopback(self.address[0])
