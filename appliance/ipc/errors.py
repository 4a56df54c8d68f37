"""What can go wrong where processes meet.

ApplianceError
├── OperatorFault
│   └── UnsupportedProcessor   the rings assume x86-64's memory ordering
├── HostFault
│   ├── PeerGone               the process at the other end of a socket is dead
│   ├── WriterGone             the writer of a sequence lock died in the middle of a write
│   └── DescriptorLost         the kernel could not hand a descriptor over (descriptor limit reached)
└── ApplianceDefect
    └── SharedMemoryCorrupt    words in shared memory contradict each other
        ├── RingCorrupt
        └── PoolCorrupt
"""

from __future__ import annotations

from appliance.errors import ApplianceDefect, HostFault, OperatorFault


class UnsupportedProcessor(OperatorFault):
    """The processor may reorder stores; the rings would hand out messages that are not written yet."""


class PeerGone(HostFault):
    """The process at the other end is dead; the caller decides what that means."""


class WriterGone(HostFault):
    """A sequence lock stayed odd beyond the reader's patience: its writer died between begin and end."""


class DescriptorLost(HostFault):
    """A message came whose descriptor the kernel dropped, because this process has too many open."""


class SharedMemoryCorrupt(ApplianceDefect):
    """Words in shared memory contradict each other: somebody wrote what is not theirs."""


class RingCorrupt(SharedMemoryCorrupt):
    """A ring's head and tail are further apart than it has slots."""


class PoolCorrupt(SharedMemoryCorrupt):
    """A block was given back twice, or blocks overlap."""
