"""Who may do what (docs/acls.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.config.option import check_fields, option
from appliance.errors import ConfigurationError

STANDARD: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The authorizer of Apache Kafka that decides by the ACLs of the cluster."""


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Whether requests are checked against rules (ACLs), and who needs none. The names are Kafka's."""

    authorizer: str = option(
        "",
        "authorizer.class.name",
        choices=("", STANDARD),
        doc="With the class name of Kafka's authorizer, the appliance checks each request against ACLs. If "
        "the option is empty, everybody may do everything.",
    )
    super_user_names: str = option(
        "",
        "super.users",
        doc="Principals that may do everything, separated by `;`. An example is `User:alice;User:bob`.",
    )
    allow_without_acls: bool = option(
        False,
        "allow.everyone.if.no.acl.found",
        doc="Whether everybody may do everything with a resource that no ACL covers.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        for name in self.super_users:
            if ":" not in name:
                raise ConfigurationError(
                    f"super.users = {self.super_user_names!r}: {name!r} must be TYPE:NAME, for example User:alice"
                )

    @property
    def checks(self) -> bool:
        """Whether requests are checked."""
        return bool(self.authorizer)

    @property
    def super_users(self) -> frozenset[str]:
        """As principals."""
        return frozenset(name.strip() for name in self.super_user_names.split(";") if name.strip())
