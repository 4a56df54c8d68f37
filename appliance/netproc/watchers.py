"""What looks at requests beside serving them: each part only where a setting asks for it.

| part | for | asked for by |
|---|---|---|
| traffic | counts for the metrics process; slow requests for the log | `metrics.listener`, `log.slow.request.ms` |
| observer | who appends to and fetches from audited and traced topics | `services.processes` |
| telemetry | metrics that clients push | `metrics.client.telemetry` |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from appliance.cluster import ClusterImage
from appliance.config.dynamic import SLOW_REQUEST_MS, shared_value
from appliance.ipc.buffer_pool import BufferPool
from appliance.process.agent import AgentProcess
from appliance.requests.apis import Apis
from appliance.requests.topic_routes import TopicRoutes
from appliance.requests.worker_lines import WorkerClient

if TYPE_CHECKING:
    from appliance.channels.telemetry_channel import TelemetryLink
    from appliance.requests.client_telemetry import ClientTelemetry
    from appliance.requests.observer import Observer
    from appliance.requests.traffic import Traffic


class Watchers:
    """Those of one network process. A part that no setting asks for is not loaded."""

    def __init__(
        self, process: AgentProcess, apis: Apis, routes: TopicRoutes, lines: WorkerClient, pool: BufferPool
    ) -> None:
        self._process = process
        self._apis = apis
        self._routes = routes
        self._slow_request_ms = 0
        self.traffic: Traffic | None = None
        self._observer: Observer | None = None
        self._telemetry: ClientTelemetry | None = None
        self._telemetry_link: TelemetryLink | None = None
        settings = process.settings
        if settings.counts_traffic:
            self._count_traffic()
        if settings.metrics.takes_telemetry:
            self._take_telemetry()
        if settings.services.processes:
            self._observe(lines, pool)

    def _count_traffic(self) -> None:
        from appliance.netproc.counting import traffic_of

        process = self._process
        self.traffic = traffic_of(
            process.attachment,
            self._routes,
            process.attachment.partitions,
            process.cycle.timers,
            process.clock,
        )
        self._apis.set_traffic(self.traffic)

    def _observe(self, lines: WorkerClient, pool: BufferPool) -> None:
        from appliance.requests.observer import Observer

        process = self._process
        self._observer = Observer(
            self._routes,
            lines,
            pool=pool,
            clock=process.clock,
            timers=process.cycle.timers,
            bells=process.attachment.services_bells(),
        )
        self._apis.set_observer(self._observer)

    def _take_telemetry(self) -> None:
        from appliance.channels.telemetry_channel import TelemetryLink
        from appliance.netproc.telemetry import telemetry_of

        self._telemetry_link = TelemetryLink(self._process.wiring, self._process.context)
        self._telemetry = telemetry_of(self._process, self._telemetry_link)
        self._apis.set_telemetry(self._telemetry)

    def look(self, image: ClusterImage) -> None:
        """Apply the settings and topics of a new image. `traffic` may be another one then."""
        if self._observer is not None:
            self._observer.look(image)
        threshold_ms = shared_value(self._process.settings, image.broker_configs, SLOW_REQUEST_MS)
        if threshold_ms != self._slow_request_ms:
            self._slow_request_ms = threshold_ms
            self._log_slow(threshold_ms)

    def _log_slow(self, threshold_ms: int) -> None:
        """Log requests that take longer than this from now on; with 0, none."""
        from appliance.netproc.counting import slow_requests, uncounted_traffic

        process = self._process
        timers, clock = process.cycle.timers, process.clock
        if self.traffic is None:
            self.traffic = uncounted_traffic(
                process.settings, self._routes, process.attachment.partitions, timers, clock
            )
            self._apis.set_traffic(self.traffic)
        self.traffic.log_slow(slow_requests(threshold_ms, timers, clock))

    def telemetry_counters(self) -> Mapping[str, int]:
        """Return what the telemetry has counted; nothing where there is none."""
        return {} if self._telemetry is None else self._telemetry.statistics()

    def close(self) -> None:
        """Write what was counted, and close the links."""
        if self.traffic is not None:
            self.traffic.flush()
        if self._telemetry_link is not None:
            self._telemetry_link.close()
