"""What is the same for all brokers of a pass over the cases: their cores, and what an acknowledgement means."""

import os
from dataclasses import dataclass

SECURITY_PROTOCOLS = {"tls": "SSL", "sasl": "SASL_PLAINTEXT", "sasl_tls": "SASL_SSL"}
"""The listeners that the setting `secure` adds."""
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Spelled alike in both brokers. A case makes ACLs, as a client that nobody knows."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run brokers and generators. Empty cores: all of them."""

    name: str
    """Empty: as shipped. Others stand before the keys of their figures: `pinned/latency.p50_us`."""
    title: str
    broker_cpus: tuple[int, ...] = ()
    generator_cpus: tuple[int, ...] = ()
    fsync: bool = False
    """Acknowledged means on the disk: our `durability`, Kafka's `flush.messages=1`."""

    secure: bool = False
    """Both also listen with TLS, and with SASL with and without it; one user of PLAIN; an authorizer."""
    lanes: bool = False
    """Ours also listens for ZeroMQ by ipc and gives shared-memory lanes."""
    delayed: bool = False
    """Ours has a services process. Beside Kafka, the cases of delayed records run a delay service of their own."""
    slots: int = 1
    """Broker slots of ours, brokers of Kafka's; topics have as many replicas."""
    rounds: int = 99
    """It takes part in at most: five for what is as shipped, three for variants, or a run would be too long."""
    warm_up_share: float = 1.0
    """Of the time for which a broker that compiles itself is warmed up by streams: where many cases are rehearsed after
    that, less."""

    @property
    def label(self) -> str:
        """What stands before the titles of its rows."""
        return f"{self.slots} slots" if self.slots > 1 else self.name

    def key(self, case: str) -> str:
        """What stands before the dot of a figure's key."""
        return f"{self.name}/{case}" if self.name else case


def _halves() -> tuple[tuple[int, ...], tuple[int, ...]]:
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    return tuple(cores[:half]), tuple(cores[half:] or cores)


AS_SHIPPED = Setting("", "as shipped", warm_up_share=0.25)
PINNED = Setting(
    "pinned",
    "broker on one half of the cores, generator on the other",
    *_halves(),
    rounds=3,
    warm_up_share=0.65,
)
FSYNC = Setting("fsync", "acknowledged when on the disk", fsync=True, rounds=3, warm_up_share=0.65)
SLOTS = Setting(
    "slots",
    "three slots, or three brokers; topics with three replicas",
    slots=3,
    rounds=3,
    warm_up_share=0.65,
)
LANES = Setting(
    "lanes",
    "ours also listens for ZeroMQ by ipc and gives shared-memory lanes; Kafka as shipped",
    lanes=True,
    warm_up_share=0.65,
)
SECURE = Setting(
    "secure",
    "both also listen with TLS and SASL; one certificate of one authority, RSA of 2,048 bits",
    secure=True,
    warm_up_share=0.65,
)
DELAYED = Setting(
    "delayed",
    "ours has one services process; beside Kafka runs a delay service in Python",
    delayed=True,
    warm_up_share=0.65,
)
SETTINGS: dict[str, Setting] = {
    setting.name: setting for setting in (AS_SHIPPED, PINNED, FSYNC, SLOTS, LANES, SECURE, DELAYED)
}
