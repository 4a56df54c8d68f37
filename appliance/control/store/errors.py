"""What a metadata store answers when it does not do what it was asked.

ApplianceError
├── StoreRefusal               the tree is not as the caller believed; nothing was changed
│   ├── NoNode
│   ├── NodeExists
│   ├── BadVersion
│   ├── NotEmpty
│   └── NoChildrenForEphemerals
└── HostFault
    ├── StorageFault
    │   ├── StoreUnavailable   the store does not answer in time; what became of a write is not known
    │   └── ChangeTooLarge     more than the store takes at once; nothing was changed
    ├── CorruptFile
    │   └── StoreDamaged       what the store keeps is damaged
    └── SessionExpired         the session is over: its ephemeral nodes are gone

A full disk is `DiskFull` (appliance/errors.py). Names are ZooKeeper's (KeeperException).
"""

from __future__ import annotations

from appliance.errors import ApplianceError, CorruptFile, HostFault, StorageFault


class StoreRefusal(ApplianceError):
    """The tree is not as the caller believed; nothing was changed.

    `path` is the node that refused, `index` the operation of a `multi` (0 outside of one).
    """

    def __init__(self, path: str, index: int = 0) -> None:
        super().__init__(f"{type(self).__name__}: {path}")
        self.path = path
        self.index = index


class NoNode(StoreRefusal):
    """There is no such node, or no parent for a node to create."""


class NodeExists(StoreRefusal):
    """The node to create is there already."""


class BadVersion(StoreRefusal):
    """The node has another version than the one that was expected."""


class NotEmpty(StoreRefusal):
    """The node to delete has children."""


class NoChildrenForEphemerals(StoreRefusal):
    """An ephemeral node bears no children."""


class StoreUnavailable(StorageFault):
    """The store did not answer in time. Whether a write took place is not known."""


class ChangeTooLarge(StorageFault):
    """More than the store takes at once; nothing was changed, and asking again will not help."""


class StoreDamaged(CorruptFile):
    """What the store keeps is damaged.

    Raised while the store opens, it is the verdict: no copy is whole either. Raised by a later call, it may come from
    an I/O error that has passed: open the store again. `why` is what was found.
    """

    def __init__(self, text: str, why: str) -> None:
        super().__init__(text)
        self.why = why


class SessionExpired(HostFault):
    """The session is over; whatever it held belongs to somebody else now."""
