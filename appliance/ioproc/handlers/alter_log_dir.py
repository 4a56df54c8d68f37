"""ALTER_LOG_DIR on a partition's owner: its move to another log directory begins, or is taken back."""

from __future__ import annotations

from appliance.channels.request_channel import TARGET_DIRECTORY, refusal
from appliance.errors import ApplianceError
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.partition_host.log_moves import LogMoves
from appliance.protocol.errors import code_for


def alter_log_dir(partition: Partition, message: tuple[int, ...], moves: LogMoves[Partition]) -> Answer:
    """Answered when the copy's directory is made; source of the checks: `ReplicaManager.alterReplicaLogDirs`."""
    error = 0
    try:
        moves.alter(partition, message[TARGET_DIRECTORY])
    except ApplianceError as fault:
        partition.fault = fault
        error = int(code_for(fault))
    return refusal(message, error)
