"""Lines about clients, partitions and their logs."""

from __future__ import annotations

from typing import Final

from appliance.journal_event import LogEvent

LOG_EVENTS: Final = (
    LogEvent("session-ended", "%s ended: %s", "session reason"),
    LogEvent("request-defect", "internal error in a request of %s (traceback follows)", "session"),
    LogEvent("session-unreachable", "%s ended: it cannot be sent to (%s)", "session reason"),
    LogEvent("copy-end-unreadable", "%s: its end cannot be read: %s", "directory reason"),
    LogEvent(
        "copy-epochs-unreadable",
        "%s: its leader epochs cannot be read, and are ignored: %s",
        "directory reason",
    ),
    LogEvent(
        "scheduler-slices-missing",
        "the kernel does not support short scheduler slices (Linux 6.12 or later does); tail "
        "latency may be higher",
    ),
    LogEvent(
        "records-lost",
        "partition %s: records are lost: slot %d leads with the longest valid log of all in-sync "
        "replicas, which ends at offset %d; records up to %d existed. Truncated bytes are in the "
        "directory %s of each replica",
        "partition slot end_offset lost_offset kept",
    ),
    LogEvent(
        "leader-epoch-impossible",
        "partition %s: slot %d leads in epoch %d, and its log has epoch %d, which no leader can "
        "have had. The log is damaged, and consumers cannot look up the end of that epoch",
        "partition slot epoch log_epoch",
    ),
    LogEvent(
        "unacknowledged-records-lost",
        "partition %s: slot %d leads with a log that ends at offset %d; a damaged replica had "
        "records up to %d. Those were not acknowledged with acks=all unless this replica was "
        "damaged as well",
        "partition slot end_offset lost_offset",
    ),
    LogEvent(
        "metadata-restored-epoch",
        "partition %s: a copy ends in leader epoch %d, and slot %d is to lead in epoch %d: the "
        "metadata was restored from a backup, or the epoch in the file is damaged. The longest "
        "log leads",
        "partition copy_epoch slot epoch",
    ),
    LogEvent(
        "copy-beginning-missing",
        "%s: ends at offset %d, but is ignored, because its beginning is missing",
        "partition offset",
    ),
    LogEvent("copy-checkpoint-unreadable", "%s; comparing the replica without this checkpoint", "reason"),
    LogEvent(
        "copies-not-compared",
        "partition %s: the in-sync copy of slot %d cannot be compared with that of slot %d, and "
        "may have more records: %s",
        "partition other_slot slot reason",
    ),
    LogEvent(
        "log-damaged-everywhere",
        "partition %s: the log of slot %d is damaged at offset %d and no other in-sync copy is "
        "whole there: readers and followers cannot pass it. Stop the appliance and run "
        "`appliance log verify --repair`, which searches all copies; or delete all records up to "
        "and including this offset",
        "partition slot offset",
    ),
    LogEvent(
        "batch-repaired",
        "partition %s: the batch of offsets %d to %d was damaged in slot %d and is repaired from "
        "the copy of slot %d; the damaged bytes are %s",
        "partition first_offset last_offset slot from_slot kept",
    ),
    LogEvent(
        "damage-not-found",
        "partition %s: damage was reported at offset %d of slot %d's log, and none is found there",
        "partition offset slot",
    ),
    LogEvent(
        "repair-failed",
        "partition %s: its log is damaged at offset %d; not repaired: %s",
        "partition offset reason",
    ),
    LogEvent(
        "segments-deleted",
        "partition %s: deleted %s. The log now begins at offset %d",
        "partition segments start_offset",
    ),
    LogEvent(
        "clock-jumped",
        "the clock jumped %s s ahead; nothing is deleted by its age for %s s",
        "seconds pause_seconds",
    ),
    LogEvent(
        "retention-blocked-by-future",
        "partition %s is kept beyond retention.ms: its oldest segment has a record of %s ms, "
        "which is in the future",
        "partition timestamp_ms",
    ),
    LogEvent("partition-failed", "partition %s: %s", "partition reason"),
    LogEvent("lane-refused", "a client of this host got no lane: %s", "reason"),
    LogEvent(
        "directory-unwatched",
        "cannot watch %s (%s); its removal will be noticed at the next checkpoint",
        "path reason",
    ),
    LogEvent(
        "handed-over-state-unreadable",
        "handed-over state of a log cannot be read, so the log is recovered: %s",
        "reason",
    ),
    LogEvent(
        "interrupted-operation-removed", "%s: removing %s, left by an interrupted operation", "directory name"
    ),
    LogEvent("indexes-rebuilt", "%s: rebuilding its indexes: %s", "file reason"),
    LogEvent(
        "log-truncated",
        "%s: truncated by %d bytes at position %d, offset %d: %s; %s",
        "file bytes position offset reason kept",
    ),
    LogEvent("segment-removed", "%s: %s, because it follows the truncated part", "file what"),
    LogEvent(
        "log-behind-start-offset",
        "%s: the log ends at %d, before its start offset %d; starting empty at the start offset",
        "directory end_offset start_offset",
    ),
    LogEvent("segment-recovered", "%s; recovering the segment", "reason"),
    LogEvent("leader-epochs-recovered", "%s; recovery reads leader epochs from the log", "reason"),
    LogEvent("log-recovered", "%s; recovering the log", "reason"),
    LogEvent(
        "partition-in-two-directories",
        "%s is in two log directories after an interrupted move: using %s, which ends at %d; "
        "removing %s, at %d",
        "partition kept kept_offset removed removed_offset",
    ),
    LogEvent("log-directory-failed", "log directory %s has failed: %s", "directory reason"),
    LogEvent("stray-directory", "%s belongs to topic id %s, not %s; moved aside", "directory found expected"),
    LogEvent(
        "file-system-not-written", "%s: some file of its file system was not written (%s)", "directory reason"
    ),
    LogEvent("checkpoint-failed", "checkpoint failed: %s", "reason"),
    LogEvent("start-offsets-checkpoint-failed", "checkpoint of log start offsets failed: %s", "reason"),
    LogEvent("flush-failed", "flush failed: %s", "reason"),
    LogEvent("offset-checkpoint-unreadable", "%s; starting without it", "reason"),
    LogEvent(
        "lease-revoked",
        "partition %s: lease %s of %s reader %s on %s is revoked: %s",
        "partition lease kind reader host reason",
    ),
    LogEvent("lease-not-removed", "%s has expired and could not be removed: %s", "file reason"),
    LogEvent("lease-not-renamed", "%s could not be renamed: %s", "file reason"),
    LogEvent("truncated-bytes-not-kept", "%s: truncated bytes could not be kept: %s", "file reason"),
    LogEvent("replaced-bytes-not-kept", "%s: replaced bytes could not be kept: %s", "file reason"),
    LogEvent("file-not-kept", "%s could not be kept: %s", "file reason"),
    LogEvent("leader-epochs-not-trimmed", "%s: cannot trim the leader epoch file: %s", "directory reason"),
    LogEvent("snapshot-not-written", "cannot write a producer snapshot: %s", "reason"),
    LogEvent("snapshot-ignored", "%s; ignoring this snapshot", "reason"),
    LogEvent("readers-not-told", "readers of the disk do not see new records: %s", "reason"),
    LogEvent("metrics-listening", "metrics at http://%s/metrics", "listener"),
    LogEvent("metrics-not-listening", "%s; next attempt in %s ms", "reason retry_ms"),
    LogEvent("metrics-page-defect", "internal error in the page %s: %s", "page error"),
    LogEvent(
        "metrics-not-sent",
        "metrics.otlp.endpoint %s: %s; the metrics were not sent",
        "endpoint reason",
    ),
    LogEvent("console-stream-defect", "internal error in the stream %s: %s", "path error"),
    LogEvent(
        "connection-rate-exceeded",
        "connection from %s closed: this address opens more than its connection_creation_rate",
        "address",
    ),
    LogEvent("connection-not-accepted", "cannot accept a connection: %s", "reason"),
    LogEvent("connection-refused", "connection from %s closed: %s", "address reason"),
    LogEvent(
        "process-not-network",
        "process %s of user %s is no network process: connection closed",
        "peer_pid user",
    ),
    LogEvent("lane-not-handed-on", "cannot hand over a client of a lane: %s", "reason"),
    LogEvent("connection-not-handed-on", "cannot hand a connection to netproc %s: %s", "peer reason"),
    LogEvent("acceptor-message-frames", "invalid message on acceptor.zmq: it does not have two frames"),
    LogEvent("acceptor-message-invalid", "invalid message on acceptor.zmq: %s", "reason"),
    LogEvent("acceptor-message-unexpected", "unexpected message from a network process: %r", "content"),
    LogEvent("network-process-not-accepted", "cannot accept a network process: %s", "reason"),
    LogEvent("lanes-missing", "no client gets a shared-memory lane: %s", "reason"),
    LogEvent(
        "authentication-defect",
        "internal error in the authentication of connection %d (traceback follows)",
        "connection",
    ),
    LogEvent("connection-closed", "%s closed: %s", "connection reason"),
    LogEvent("cleaner-message-unknown", "message %s from the cleaner is not known", "content"),
    LogEvent(
        "stale-command-rejected",
        "rejected a command of controller epoch %s, which is older than %s",
        "epoch newest_epoch",
    ),
    LogEvent("partition-held-after-all", "partition %s is %s after all", "partition state"),
    LogEvent("command-unexpected", "unexpected command: %s", "command"),
    LogEvent("stop-unclean", "not stopped cleanly, the next start recovers: %s", "reason"),
    LogEvent("move-started", "partition %s: moving to %s", "partition directory"),
    LogEvent("moved", "partition %s: moved to %s", "partition directory"),
    LogEvent(
        "move-failed",
        "partition %s: move failed, the partition stays in its directory: %s",
        "partition reason",
    ),
    LogEvent(
        "move-leftover",
        "partition %s: moved, but its old directory could not be removed yet: %s",
        "partition reason",
    ),
    LogEvent("move-continued", "partition %s: continuing the move to %s", "partition directory"),
    LogEvent("partition-offline", "partition %s is %s: %s", "partition state reason"),
    LogEvent(
        "partitions-offline", "%s partitions are %s, because their log directory has failed", "count state"
    ),
    LogEvent("removal-failed", "not removed, the next start tries again: %s", "reason"),
    LogEvent("supervisor-gone", "the supervisor is gone; stopping"),
    LogEvent("supervisor-message-unexpected", "unexpected message from the supervisor: %s", "content"),
    LogEvent(
        "landlock-missing",
        "the kernel offers no Landlock: network processes have only the file modes between them and the logs",
    ),
    LogEvent(
        "privileges-possible", "the appliance could gain privileges by a set-user-ID program: %s", "reason"
    ),
    LogEvent("rights-kept", "this process keeps rights that it does not need: %s", "reason"),
    LogEvent(
        "replica-files-missing",
        "partition %s: files of this replica are missing: it starts at %d, the leader's log at "
        "%d; copying it again",
        "partition start_offset leader_start_offset",
    ),
    LogEvent("audit-defect", "internal error: %s is not in the audit journal", "what"),
    LogEvent("segment-unreadable", "a segment cannot be read: %s", "reason"),
    LogEvent("traffic-defect", "internal error in counting for metrics, counts are lost: %r", "error"),
    LogEvent("plain-users-changed", "the file of PLAIN users has changed; new authentications use it"),
    LogEvent(
        "plain-users-unusable",
        "the file of PLAIN users has changed and cannot be used; the users from before stay: %s",
        "reason",
    ),
    LogEvent("plain-users-missing", "no PLAIN authentication succeeds: %s", "reason"),
    LogEvent(
        "salt-secret-missing", "%s: %s: until the next start, SCRAM shows which users exist", "path reason"
    ),
    LogEvent(
        "delayed-records-dropped",
        "partition %s-%s: %s delayed records were dropped, because %s",
        "topic partition count reason",
    ),
    LogEvent(
        "delivery-log-shorter",
        "%s-%s ends at offset %s, but was delivered up to %s: its last records were lost, as in "
        "a power cut; what comes at these offsets now is delivered",
        "topic partition end_offset delivered_offset",
    ),
    LogEvent(
        "delay-index-not-written",
        "%s-%s: the index of what waits could not be written, it stays in memory: %s",
        "delay_level partition error",
    ),
    LogEvent(
        "delayed-records-of-deleted-topic-dropped",
        "%s delayed records were dropped, because their topic was deleted",
        "count",
    ),
    LogEvent(
        "open-delivery-lost",
        "%s-%s: records of an open delivery are not there any more; %s are dropped",
        "topic partition what",
    ),
    LogEvent("delivery-blocked", "%s-%s: %s; nothing is delivered from there", "topic partition reason"),
    LogEvent("tls-files-changed", "the TLS files have changed; new connections use them"),
    LogEvent("tls-unusable", "no TLS handshake succeeds: %s", "reason"),
    LogEvent(
        "tls-files-unusable", "the TLS files have changed and cannot be used; %s: %s", "consequence reason"
    ),
    LogEvent("state-served-again", "%s-%s is replayed, its requests are served again", "topic partition"),
    LogEvent("subscription-failed", "%s: %s", "subscription reason"),
    LogEvent("lines-left-out", "… and %s more %s in the last %s s", "count what seconds"),
    LogEvent(
        "slow-request",
        "slow request: %s version %s of %s took %s ms: answer %s ms, send %s ms, wait %s ms; %s bytes",
        "api version connection total_ms answer_ms send_ms wait_ms bytes",
    ),
    LogEvent("console-listening", "console at http://%s", "listener"),
    LogEvent(
        "console-descriptors-short",
        "no descriptor is left for a connection; next attempt in %s ms",
        "retry_ms",
    ),
    LogEvent("console-look-defect", "internal error in a look at shared memory: %s", "error"),
    LogEvent("observing-defect", "internal error in observing, names are lost: %r", "error"),
    LogEvent("errand-defect", "internal error in %s, which begins again: %r", "errand error"),
    LogEvent("trace-not-sent", "trace.otlp.endpoint %s: %s; %s steps were not sent", "endpoint reason count"),
    LogEvent(
        "too-many-cancellations",
        "%s-%s: too many records were cancelled; later cancellations do not count before "
        "earlier ones are forgotten, which takes as long as the largest level",
        "topic partition",
    ),
    LogEvent("connection-opened", "%s opened", "connection"),
    LogEvent("connection-ended", "%s has ended", "connection"),
    LogEvent("assignment", "assignment %d of controller epoch %d: %d partitions", "number epoch partitions"),
    LogEvent("request-of-process", "request %s of %s", "request peer"),
    LogEvent("log-levels", "log levels: %s", "levels"),
    LogEvent("lines-suppressed", "%d more lines like this one were left out: %s", "count like"),
    LogEvent("lines-lost", "%d lines were lost, because the journal of systemd took none", "count"),
)
