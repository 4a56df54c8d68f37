"""Lines of the supervisor, the controller, the coordinators and the other processes beside the log."""

from __future__ import annotations

from typing import Final

from appliance.journal_event import LogEvent

CONTROL_EVENTS: Final = (
    LogEvent(
        "audit-entries-lost",
        "%s entries of the audit journal are lost, because %s cannot be written: %s",
        "count path reason",
    ),
    LogEvent("runtime-directory-foreign", "%s belongs to another user; using another name", "path"),
    LogEvent(
        "runtime-directory-in-use",
        "%s belongs to a running instance with another data directory; not removed",
        "path",
    ),
    LogEvent(
        "audit-topic-refuses",
        "topic %s took no entries of the audit journal: %s; they are tried again",
        "topic reason",
    ),
    LogEvent(
        "audit-topic-entries-lost",
        "entries of the audit journal are lost for topic %s: it takes none",
        "topic",
    ),
    LogEvent(
        "cleaner-checkpoint-moved",
        "cannot update the checkpoint of %s, which has moved: %s",
        "directory reason",
    ),
    LogEvent(
        "cleaner-checkpoint-removed",
        "cannot update the checkpoint of %s, which was removed: %s",
        "directory reason",
    ),
    LogEvent(
        "cleaner-checkpoint-unreadable",
        "%s; every log in this directory will be compacted from the beginning",
        "reason",
    ),
    LogEvent(
        "log-compacted",
        "%s: compacted up to offset %d, dirty from %d: %.1f MiB became %.1f MiB, %d of %d "
        "records stay, %d keys in %.1f MiB, %.1f s",
        "partition offset dirty_offset before_mib after_mib records_left records keys keys_mib seconds",
    ),
    LogEvent("records-without-key-dropped", "%s: %d records without a key were dropped", "partition count"),
    LogEvent("compaction-check-failed", "%s: %s; will be checked again", "partition reason"),
    LogEvent(
        "compaction-failed", "compaction of %s failed: %s; retrying in %d ms", "partition reason retry_ms"
    ),
    LogEvent("log-uncompactable", "%s cannot be compacted and stays uncompacted: %s", "partition reason"),
    LogEvent("control-message-unsent", "cannot send a message to %s: %s", "peer reason"),
    LogEvent("control-message-invalid", "invalid message from %s dropped: %s", "peer reason"),
    LogEvent("slots-live", "live slots: %s", "slots"),
    LogEvent("command-failed", "%s: %s failed with error %d: %s", "peer partition code reason"),
    LogEvent(
        "isr-change-ignored", "ISR change from %s ignored, because the process has not registered", "peer"
    ),
    LogEvent(
        "replica-state-ignored",
        "state of replicas from %s ignored, because the process is not running",
        "peer",
    ),
    LogEvent(
        "later-epochs-ignored",
        "later leader epochs from %s ignored, because the process is not running",
        "peer",
    ),
    LogEvent(
        "topic-removal-failed", "cannot remove deleted topics from the metadata store yet: %s", "reason"
    ),
    LogEvent(
        "registrations-failed", "cannot update broker registrations, retrying in %d ms: %s", "retry_ms reason"
    ),
    LogEvent("control-message-unexpected", "unexpected message %s from %s ignored", "content peer"),
    LogEvent("metadata-change-failed", "metadata change failed, nothing was changed: %s", "reason"),
    LogEvent(
        "metadata-older-than-logs",
        "the metadata store is older than the logs of slot %d, as after the restore of a backup: "
        "leader epochs of %d partitions are raised above those of the logs, and the longest logs "
        "lead: %s",
        "slot partitions names",
    ),
    LogEvent("process-not-restarted", "%s did not restart in time", "peer"),
    LogEvent("isr-shrunk", "slot %d left the ISR of %s", "slot partitions"),
    LogEvent("isr-expanded", "slot %d joined the ISR of %s", "slot partitions"),
    LogEvent("leaders-moved", "%d partitions: leader %d → %d", "partitions from_slot to_slot"),
    LogEvent(
        "storage-failed-without-leaders",
        "slot %d has failed storage, but its partitions cannot get new leaders yet: %s",
        "slot reason",
    ),
    LogEvent("leader-epochs-not-raised", "leader epochs are not raised yet: %s", "reason"),
    LogEvent("elections-failed", "cannot elect leaders, retrying in %d ms: %s", "retry_ms reason"),
    LogEvent("replica-leave-failed", "cannot record replicas that left yet: %s", "reason"),
    LogEvent("isr-change-failed", "cannot change the ISR: %s", "reason"),
    LogEvent(
        "controller-started",
        "controller epoch %d, %d topics, %d deletions to finish",
        "epoch topics deletions",
    ),
    LogEvent("controller-restarts", "controller restarts: %s", "reason"),
    LogEvent("controller-standby", "another controller is active; standing by"),
    LogEvent(
        "metadata-store-unusable",
        "cannot use the metadata store, opening it again in %d ms: %s",
        "retry_ms reason",
    ),
    LogEvent("leaders-preferred", "%d partitions return to their preferred leaders", "partitions"),
    LogEvent("moves-not-continued", "cannot continue moves of partitions: %s", "reason"),
    LogEvent("leaders-not-balanced", "cannot balance leaders: %s", "reason"),
    LogEvent("producer-ids-failed", "cannot allocate producer ids: %s", "reason"),
    LogEvent(
        "quota-ignored",
        "metadata node %s: %s = %s ignored, because a quota must be above 0",
        "node key value",
    ),
    LogEvent(
        "delegation-token-unreadable",
        "%s: nobody can log in with this delegation token; create another one",
        "reason",
    ),
    LogEvent("delegation-token-expired", "delegation token %s of %s has expired", "token owner"),
    LogEvent(
        "user-credential-unreadable", "%s: the user cannot authenticate with it; set a new password", "reason"
    ),
    LogEvent(
        "assignments-unconfirmed",
        "these processes did not confirm their assignments in time: %s",
        "processes",
    ),
    LogEvent("group-request-defect", "internal error in a group request (traceback follows)"),
    LogEvent(
        "group-limits-reached",
        "%s new groups and %s requests of members were refused since the start. There are %s "
        "groups (group.max.count = %s). Members are bounded by group.members.max = %s, and their "
        "%s bytes by group.max.bytes = %s and group.members.max.bytes = %s. Delete groups, or "
        "raise the limit.",
        "groups_refused members_refused groups groups_max members_max member_bytes group_max_bytes members_max_bytes",
    ),
    LogEvent("group-expiry-failed", "cannot check the offsets of group %s for expiry: %s", "group reason"),
    LogEvent(
        "marker-refused",
        "%s refuses the marker of producer %s, epoch %s, with %s: the transaction stays as it is",
        "peer producer_id producer_epoch error",
    ),
    LogEvent(
        "state-not-replayed",
        "%s-%s cannot be replayed, its requests are refused: %s",
        "topic partition reason",
    ),
    LogEvent(
        "state-append-failed",
        "%s-%s: an append failed with %s; the log is replayed again",
        "topic partition error",
    ),
    LogEvent(
        "state-unreadable",
        "%s-%s cannot be read, its requests are refused until it can: %s",
        "topic partition reason",
    ),
    LogEvent(
        "transaction-not-aborted",
        "transactional id %s: its transaction timed out and cannot be aborted yet: %s",
        "transactional_id reason",
    ),
    LogEvent(
        "transaction-timed-out",
        "transactional id %s: its transaction timed out and is aborted; its producer is fenced",
        "transactional_id",
    ),
    LogEvent(
        "identity-keys-failed",
        "cannot get the keys of the identity provider from %s: %s; %s; next attempt in %s ms",
        "url reason keys retry_ms",
    ),
    LogEvent(
        "identity-keys-used", "%s keys of the identity provider are in use: %s (%s)", "count url key_ids"
    ),
    LogEvent(
        "identity-keys-again",
        "the keys of the identity provider were fetched again after %s failures (%s)",
        "failures keys",
    ),
    LogEvent("identity-key-unused", "%s: %s; it is not used", "url reason"),
    LogEvent(
        "metadata-store-restored",
        "metadata store %s is damaged (%s): RESTORED from its copy %s up to transaction %d, "
        "nothing acknowledged is lost%s; find out what damaged it",
        "path reason copy transaction more",
    ),
    LogEvent(
        "metadata-store-suspect", "metadata store %s looks damaged (%s): reading it again", "path reason"
    ),
    LogEvent(
        "metadata-store-behind-copy",
        "metadata store %s ends at transaction %d, and its copy at %d. There is no %s, so the "
        "store is used as it is, and the copy is kept as %s",
        "path transaction copy_transaction missing kept",
    ),
    LogEvent(
        "metadata-store-completed",
        "metadata store %s lacked transactions %d to %d, and got them from its copy %s",
        "path from_transaction to_transaction copy",
    ),
    LogEvent(
        "metadata-copy-failed",
        "the copy of the metadata store, %s, cannot be written (%s). Changes from transaction %d "
        "on are only in the store until the copy can be written again",
        "path reason transaction",
    ),
    LogEvent(
        "zookeeper-session-ended-of-dead", "ended ZooKeeper session 0x%x of a process that died", "session"
    ),
    LogEvent("zookeeper-session-ended", "the session with ZooKeeper at %s ended: %s", "servers reason"),
    LogEvent(
        "zookeeper-silent",
        "ZooKeeper at %s keeps a connection but does not answer; changing to another server",
        "servers",
    ),
    LogEvent("zookeeper-connection-lost", "lost the connection to ZooKeeper at %s", "servers"),
    LogEvent("zookeeper-reconnected", "reconnected to ZooKeeper at %s", "servers"),
    LogEvent(
        "data-directory-full",
        "data directory %s: the disk is full, so %s was not written: free some space",
        "directory file",
    ),
    LogEvent("process-died", "%s (pid %d) %s%s; restarted %s", "peer peer_pid end reason when"),
    LogEvent("appliance-gives-up", "%s; the appliance stops", "reason"),
    LogEvent("parent-ended", "the process that started this broker has ended: stopping"),
    LogEvent(
        "process-held",
        "%s (pid %d) was killed, and the kernel holds it, perhaps because a disk does not "
        "answer. The process executes no more instructions. Its files stay open until the kernel "
        "lets it end",
        "peer peer_pid",
    ),
    LogEvent(
        "process-left-behind", "%s (pid %d) was killed but still exists; stopping without it", "peer peer_pid"
    ),
    LogEvent(
        "process-restarted",
        "%s is running again as generation %d after %d ms",
        "peer generation duration_ms",
    ),
    LogEvent("process-died-before-stop", "%s %s before the stop signal%s", "peer end reason"),
    LogEvent("stopping", "%s: stopping", "signal"),
    LogEvent("configuration-read", "configuration read again: %s", "settings"),
    LogEvent("configuration-not-read", "configuration not read again, nothing was changed: %s", "reason"),
    LogEvent("process-killed-at-stop", "%s did not stop in time and was killed", "peer"),
    LogEvent("process-message-invalid", "%s sent an invalid message (%s) and was killed", "peer reason"),
    LogEvent("process-died-in-stop", "%s %s while it stopped", "peer end"),
    LogEvent("stopping-soon", "%s received again: stopping within %d ms", "signal within_ms"),
    LogEvent("stopping-now", "%s received again: killing processes that still run", "signal"),
    LogEvent("process-survives-kill", "%s (pid %d) was killed but still exists", "peer peer_pid"),
    LogEvent("process-ready-twice", "%s reported Ready twice", "peer"),
    LogEvent("process-message-unexpected", "unexpected message from %s: %r", "peer content"),
    LogEvent("process-hung", "%s did not answer for %d ms and was killed", "peer timeout_ms"),
    LogEvent(
        "threads-before-fork",
        "%d threads run before the first fork; a child process may inherit a locked lock",
        "threads",
    ),
    LogEvent("process-defect", "internal error; the process ends (traceback follows)"),
    LogEvent("process-exception", "unhandled exception; the process ends (traceback follows)"),
    LogEvent("socket-of-systemd", "slot %d listens on %s, on the socket passed by systemd", "slot address"),
    LogEvent("shared-memory-removed", "removed %d shared memory files of a killed instance", "files"),
    LogEvent(
        "shared-memory-of-dead-removed",
        "removed %s, the shared memory of an instance that no longer runs",
        "path",
    ),
    LogEvent(
        "listening-without-authentication",
        "listening without authentication on %s: anybody who reaches this port can read, write "
        "and delete everything",
        "addresses",
    ),
    LogEvent(
        "passwords-in-clear",
        "passwords of PLAIN cross the network unencrypted on %s: use SASL_SSL, or SCRAM",
        "addresses",
    ),
    LogEvent(
        "address-told-on-arrival",
        "clients get the address that they connected to; behind NAT or a port forward set %s",
        "option",
    ),
    LogEvent(
        "descriptor-limit-low",
        "the limit of open files per process is %d, but max.connections is %d; raise the limit "
        "(ulimit -n, LimitNOFILE=)",
        "limit connections_max",
    ),
    LogEvent("stopped", "stopped"),
    LogEvent("cannot-start", "%s", "reason"),
    LogEvent("directory-opened-to-group", "%s %s can now be read by the group %s", "kind path group"),
    LogEvent(
        "hard-links-left",
        "%s %s: %d files have other hard links (perhaps in a directory of Apache Kafka) and keep "
        "their modes; members of the group %s may be unable to read them",
        "kind path files group",
    ),
    LogEvent(
        "directory-made-private",
        "%s %s had mode %s; it is now 0700, so other users cannot open it (see data.directory.group)",
        "kind path mode",
    ),
    LogEvent(
        "directory-replaceable",
        "%s %s: %s can rename what is in %s, and put another directory in its place (owner %s, mode %s)",
        "kind path who parent owner mode",
    ),
    LogEvent(
        "zeromq-insecure",
        "zeromq.tcp.insecure: anybody who reaches the ZeroMQ ports can read, write and delete everything",
    ),
    LogEvent("zeromq-endpoint", "ZeroMQ clients connect to %s", "addresses"),
    LogEvent(
        "zeromq-key-unusable",
        "zeromq.curve.client.keys.dir: %s has no public key of 40 characters of Z85 in %s; the clients of "
        "these files cannot connect",
        "path files",
    ),
)
