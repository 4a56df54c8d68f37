"""What `journalctl -x` says below a line: why it matters, and what the operator should do.

Each event has a MESSAGE_ID of its own, made of its name, so it stays the same as long as the name does. The events of
EXPLANATIONS have an entry in systemd's catalog, too: deploy/systemd/appliance.catalog, written by

    python -m scripts.log_catalog deploy/systemd/appliance.catalog

`@NAME@` stands for a field of the line, as in the catalog itself: the name of a value of the event in upper case.
Source of the form: systemd's catalog documentation (https://systemd.io/CATALOG).
"""

from __future__ import annotations

from functools import cache
from typing import Final
from uuid import UUID, uuid5

_NAMESPACE: Final = UUID("16846542-6c43-4c53-8ecc-1a5fbd907fcc")


@cache
def message_id(event: str) -> str:
    """The MESSAGE_ID of an event: 32 hexadecimal digits."""
    return uuid5(_NAMESPACE, event).hex


EXPLANATIONS: Final[dict[str, tuple[str, str]]] = {
    "appliance-gives-up": (
        "The appliance stops, because it cannot go on",
        "@REASON@\n\nThe supervisor has restarted a process as often as it may, or cannot work itself. systemd starts"
        " the service again. The lines before this one name the process and its error. If the service stops"
        " again, run `appliance doctor` on this host.",
    ),
    "cannot-start": (
        "The appliance cannot start",
        "@REASON@\n\nNothing was changed in the data directory. After a wrong configuration, a data directory"
        " that is in use, or a port that is taken, systemd does not try again: correct the cause, then run"
        " `systemctl start appliance`.",
    ),
    "configuration-not-read": (
        "A changed configuration file is not in effect",
        "@REASON@\n\nThe appliance continues with the settings that it has. Correct the file and run"
        " `systemctl reload appliance`. If the service restarts before, it does not start with this file.",
    ),
    "data-directory-full": (
        "The disk of the data directory is full",
        "@FILE@ in @DIRECTORY@ could not be written. Producers get errors until there is room. Delete topics or"
        " records (`appliance topics delete`, `appliance topics delete-records`), lower retention.ms or"
        " retention.bytes, or make the file system larger. The appliance goes on by itself when it has room.",
    ),
    "descriptor-limit-low": (
        "The limit of open files is lower than the number of connections allowed",
        "A process may open @LIMIT@ files, and max.connections is @CONNECTIONS_MAX@. Connections above the limit are"
        " refused. Raise LimitNOFILE= (`systemctl edit appliance`), or lower max.connections.",
    ),
    "flush-failed": (
        "Records could not be forced to the disk",
        "@REASON@\n\nA failed flush can mean that the kernel has lost written bytes. Look for errors of the"
        " device with `journalctl -k`. Then compare the logs: `appliance log verify`.",
    ),
    "listening-without-authentication": (
        "Everybody who reaches the port may do everything",
        "The listeners @ADDRESSES@ ask nobody for a password or a certificate. Set up authentication, or listen on"
        " 127.0.0.1 only: docs/access.md.",
    ),
    "log-damaged-everywhere": (
        "A log is damaged, and no in-sync replica is whole there",
        "Partition @PARTITION@ is damaged at offset @OFFSET@. Consumers and followers cannot read past it. The line"
        " says how to repair the log while the appliance is stopped. Before that, copy the directory of the"
        " partition. Look for errors of the device and of the memory: `journalctl -k`.",
    ),
    "log-directory-failed": (
        "A log directory has failed",
        "@DIRECTORY@: @REASON@\n\nOther slots lead its partitions if they have in-sync replicas. Partitions without"
        " another replica are offline: `appliance partitions list --unavailable`. Look at the device with"
        " `journalctl -k`. When the disk is good again, restart the slot.",
    ),
    "metadata-store-restored": (
        "The metadata store was damaged, and is restored from its copy",
        "@PATH@: @REASON@\n\nNo acknowledged change is lost. The damaged file is kept beside it. Find out what"
        " damaged it, because logs on the same disk can be damaged, too: `appliance log verify`. See"
        " docs/metadata.md.",
    ),
    "metadata-store-unusable": (
        "The metadata store cannot be used",
        "@REASON@\n\nProducers and consumers continue. Topics, settings, ACLs and users cannot be changed, and"
        " no leader moves. The controller opens the store again by itself. Look at the disk, or at ZooKeeper.",
    ),
    "partition-offline": (
        "A partition is offline on a slot",
        "Partition @PARTITION@ is @STATE@: @REASON@\n\nIf another slot has an in-sync replica, it leads."
        " Otherwise clients wait: `appliance partitions list --unavailable`.",
    ),
    "process-died": (
        "A process died and was restarted",
        "@PEER@ (pid @PEER_PID@) @END@. The supervisor has started it again, and clients try again by"
        " themselves. One such line is no problem. If it comes again and again, read the lines of this process"
        " before it, and look for the kernel's out-of-memory killer: `journalctl -k`.",
    ),
    "process-held": (
        "The kernel does not let a killed process end",
        "@PEER@ (pid @PEER_PID@) waits in the kernel, most often for a disk that does not answer. Look at the"
        " device with `journalctl -k` and at /proc/@PEER_PID@/stack.",
    ),
    "process-hung": (
        "A process did not answer and was killed",
        "@PEER@ did not answer for @TIMEOUT_MS@ ms. The supervisor starts it again. A very busy host, a slow disk or"
        " memory that is swapped out can cause this: `appliance doctor`.",
    ),
    "records-lost": (
        "Acknowledged records are lost",
        "Partition @PARTITION@: the longest valid log of all in-sync replicas ends at offset @END_OFFSET@, and"
        " records up to @LOST_OFFSET@ existed. This happens when all in-sync replicas lost their last bytes, as"
        " in a power cut with durability = page-cache. Consumers that have read further get"
        " OFFSET_OUT_OF_RANGE. See `durability` in docs/configuration.md.",
    ),
    "stop-unclean": (
        "A log was not closed cleanly",
        "@REASON@\n\nThe next start reads the end of the logs again, which takes longer. No acknowledged record"
        " is lost by it. If it happens at each stop, raise shutdown.timeout.ms and TimeoutStopSec=.",
    ),
    "tls-files-unusable": (
        "Changed TLS files cannot be used",
        "@REASON@\n\nConnections use the certificate from before until it expires. Correct the files; the"
        " appliance reads them again at the next connection.",
    ),
    "zookeeper-connection-lost": (
        "ZooKeeper cannot be reached",
        "@SERVERS@\n\nProducers and consumers continue. Topics, settings, ACLs and users cannot be changed, and"
        " no leader moves until ZooKeeper answers. The appliance connects again by itself. See docs/zookeeper.md.",
    ),
}
"""Event → subject, and text with paragraphs separated by an empty line."""
