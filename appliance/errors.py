"""The error tree: *whose fault* stands at the root.

    ApplianceError
    ├── ClientFault        what a client sent cannot be served
    │   ├── MalformedFrame     bytes that are not what they claim; the connection is closed with one log line
    │   └── RejectedRequest    well-formed, but refused with a Kafka error code
    ├── OperatorFault      what the person who runs the appliance asked for cannot be done
    │   ├── ConfigurationError
    │   └── DataDirectoryInUse
    ├── HostFault          the machine failed us: disk full, I/O error, no memory
    │   ├── StorageFault
    │   │   ├── DiskFull
    │   │   ├── LogDirectoryOffline
    │   │   └── DamagedLog
    │   └── CorruptFile
    └── ApplianceDefect    our own mistake; never the client's business

Wire codes live in one table, `appliance.protocol.errors`; nothing here knows a number of the Kafka protocol
except through `RejectedRequest.code`.
"""

from __future__ import annotations


class ApplianceError(Exception):
    """Root of everything the appliance raises on purpose."""


class ClientFault(ApplianceError):
    """What a client sent cannot be served."""


class MalformedFrame(ClientFault):
    """Bytes that are not what they claim to be. The connection is closed; the text says why, once, in the log."""


class RejectedRequest(ClientFault):
    """A well-formed request refused with a Kafka error code.

    Args:
        code: the Kafka error code (int16), one of `appliance.protocol.errors.ErrorCode`.
        message: one sentence for the client, without a trace of our insides.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class OperatorFault(ApplianceError):
    """What the operator asked for cannot be done; the text says what to do instead."""


class ConfigurationError(OperatorFault):
    """An unknown, wrong or contradictory option."""


class DataDirectoryInUse(OperatorFault):
    """Another living instance holds the data directory."""


class HostFault(ApplianceError):
    """The machine failed: disk, memory, descriptors."""


class StorageFault(HostFault):
    """A log directory could not be read or written (answered as KAFKA_STORAGE_ERROR).

    `os_error` is what the operating system said, where it did; `__cause__` is not to be asked: `raise … from …` leaves
    none in a module that mypyc has compiled (decision 0013).
    """

    os_error: OSError | None = None


class DiskFull(StorageFault):
    """No space could be allocated (ENOSPC, EDQUOT)."""


class LogDirectoryOffline(StorageFault):
    """The log directory of a partition has failed, or may have held it; nothing is tried until the next start."""


class DamagedLog(StorageFault):
    """A log holds no sound batch where its owner says that there is one."""


class CorruptFile(HostFault):
    """A file of ours does not parse or fails its checksum."""


class ApplianceDefect(ApplianceError):
    """An invariant of ours does not hold."""
