"""Builds the package. With APPLIANCE_COMPILED=1 the hot modules are compiled by mypyc from the same source.

Pure Python is complete and the default; see docs/decisions/0013.
"""

from __future__ import annotations

import os

from setuptools import setup
from setuptools.extension import Extension

# What a request runs through, from the socket to the segment and back. A module stands here only because compiling it
# was measured to pay; it must work the same without.
HOT_MODULES = (
    "appliance/channels/partition_table.py",
    "appliance/channels/replica_channel.py",
    "appliance/control/coordinator/coordinator.py",
    "appliance/control/coordinator/duty_cycle.py",
    "appliance/control/coordinator/internal_logs.py",
    "appliance/control/coordinator/offsets/offset_book.py",
    "appliance/control/coordinator/offsets/offset_commit.py",
    "appliance/control/coordinator/offsets/offset_records.py",
    "appliance/control/coordinator/offsets/packed_offsets.py",
    "appliance/control/coordinator/request_lines.py",
    "appliance/control/coordinator/request_queue.py",
    "appliance/control/coordinator/shard.py",
    "appliance/control/coordinator/topics.py",
    "appliance/ipc/agent.py",
    "appliance/ipc/brief_wait.py",
    "appliance/ipc/buffer_pool.py",
    "appliance/ipc/doorbell.py",
    "appliance/ipc/fence.py",
    "appliance/ipc/ring.py",
    "appliance/ipc/while_it_pays.py",
    "appliance/ioproc/answer_rings.py",
    "appliance/ioproc/checkpoints.py",
    "appliance/ioproc/delayed_produce.py",
    "appliance/ioproc/followed.py",
    "appliance/ioproc/follower_bells.py",
    "appliance/ioproc/handlers/fetch.py",
    "appliance/ioproc/handlers/produce.py",
    "appliance/ioproc/partition.py",
    "appliance/ioproc/pokes.py",
    "appliance/ioproc/replication.py",
    "appliance/ioproc/worker.py",
    "appliance/log/index_file.py",
    "appliance/log/local_log.py",
    "appliance/log/log_producers.py",
    "appliance/log/offset_index.py",
    "appliance/log/partition_log.py",
    "appliance/log/producer_limits.py",
    "appliance/log/producer_state.py",
    "appliance/log/segment.py",
    "appliance/log/segment_file.py",
    "appliance/log/time_index.py",
    "appliance/log/validator.py",
    "appliance/netproc/apis.py",
    "appliance/netproc/connection.py",
    "appliance/netproc/connections.py",
    "appliance/netproc/coordinator_line.py",
    "appliance/netproc/cursors.py",
    "appliance/netproc/fan_out.py",
    "appliance/netproc/fetch_session.py",
    "appliance/netproc/intake.py",
    "appliance/netproc/log_handlers/fetch.py",
    "appliance/netproc/log_handlers/fetch_item.py",
    "appliance/netproc/log_handlers/fetch_responder.py",
    "appliance/netproc/log_handlers/produce.py",
    "appliance/netproc/memory_relief.py",
    "appliance/netproc/outlet.py",
    "appliance/netproc/processor.py",
    "appliance/netproc/purgatory_line.py",
    "appliance/netproc/read_ahead.py",
    "appliance/netproc/segment_files.py",
    "appliance/netproc/topic_routes.py",
    "appliance/netproc/worker_lines.py",
    "appliance/protocol/fetch_request.py",
    "appliance/protocol/fetch_response.py",
    "appliance/protocol/framing.py",
    "appliance/protocol/headers.py",
    "appliance/protocol/leader_epoch.py",
    "appliance/protocol/offset_commit.py",
    "appliance/protocol/primitives.py",
    "appliance/protocol/produce.py",
    "appliance/protocol/records/keyed_batch.py",
    "appliance/protocol/records/varint.py",
    "appliance/protocol/records/walk.py",
    "appliance/protocol/records/walk_together.py",
    "appliance/replicas/durable_copies.py",
    "appliance/replicas/duty_cycle.py",
    "appliance/replicas/fetcher.py",
    "appliance/replicas/follower.py",
    "appliance/replicas/leader_lines.py",
    "appliance/replicas/leader_log.py",
    "appliance/replicas/throttle.py",
)


def compiled_modules() -> list[Extension]:
    """The extensions to build: none, unless asked for."""
    if os.environ.get("APPLIANCE_COMPILED") != "1":
        return []
    from mypyc.build import mypycify

    extensions: list[Extension] = mypycify(list(HOT_MODULES), opt_level="3")
    return extensions


setup(ext_modules=compiled_modules())
