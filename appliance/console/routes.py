"""Which handler answers which path. GET shows; POST changes, and needs the secret of the session's forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.console.pages import (
    access,
    groups,
    messages,
    overview,
    producing,
    settings,
    tailing,
    topics,
    transactions,
)
from appliance.console.visit import Handler

ROUTES: Final[Mapping[tuple[str, str], Handler]] = {
    ("GET", "/"): overview.overview,
    ("GET", "/events"): overview.events,
    ("GET", "/processes"): overview.processes,
    ("GET", "/topics"): topics.topics,
    ("GET", "/topics/new"): topics.new_topic,
    ("POST", "/topics/new"): topics.create_topic,
    ("GET", "/topic"): topics.topic,
    ("GET", "/topic/configs"): topics.configs,
    ("POST", "/topic/configs"): topics.alter_config,
    ("POST", "/topic/partitions"): topics.add_partitions,
    ("GET", "/topic/delete"): topics.confirm_delete,
    ("POST", "/topic/delete"): topics.delete_topic,
    ("GET", "/topic/messages"): messages.messages,
    ("GET", "/topic/tail"): tailing.tail_page,
    ("GET", "/topic/tail/events"): tailing.tail_events,
    ("GET", "/topic/produce"): producing.produce_page,
    ("POST", "/topic/produce"): producing.produce,
    ("GET", "/groups"): groups.groups,
    ("GET", "/group"): groups.group,
    ("GET", "/group/reset"): groups.reset_page,
    ("POST", "/group/reset"): groups.reset,
    ("GET", "/group/delete"): groups.confirm_delete,
    ("POST", "/group/delete"): groups.delete_group,
    ("GET", "/transactions"): transactions.transactions,
    ("GET", "/transaction"): transactions.transaction,
    ("GET", "/acls"): access.acls,
    ("POST", "/acls/add"): access.add_acl,
    ("POST", "/acls/remove"): access.remove_acl,
    ("GET", "/users"): access.users,
    ("POST", "/users/add"): access.add_user,
    ("POST", "/users/remove"): access.remove_user,
    ("GET", "/quotas"): access.quotas,
    ("POST", "/quotas"): access.alter_quota,
    ("GET", "/settings"): settings.settings,
    ("POST", "/settings"): settings.alter_setting,
}
