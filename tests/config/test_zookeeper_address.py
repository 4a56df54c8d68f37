"""One reading of `host:port,host:port/chroot` for the option, the store, backup and restore."""

from __future__ import annotations

import pytest

from appliance.config.sections.metadata import MetadataSettings
from appliance.config.zookeeper_address import split_connect
from appliance.control.backup.zookeeper_client import split_address
from appliance.errors import ConfigurationError, OperatorFault


@pytest.mark.parametrize(
    ("connect", "hosts", "chroot"),
    [
        ("a:1", "a:1", ""),
        ("a:1/", "a:1", ""),
        ("a:1,b-c.d_e:65535/kafka", "a:1,b-c.d_e:65535", "/kafka"),
        ("a:1/kafka/", "a:1", "/kafka"),
        ("[::1]:2181/a/b.c/..d", "[::1]:2181", "/a/b.c/..d"),
    ],
)
def test_address_is_split_into_servers_and_chroot(connect: str, hosts: str, chroot: str) -> None:
    assert split_connect(connect) == split_address(connect) == (hosts, chroot)
    MetadataSettings(store="zookeeper", zookeeper_connect=connect)


@pytest.mark.parametrize(
    "connect",
    [
        "",
        "/",
        "a",
        "a:x/kafka",
        "a:1,/kafka",
        "a:1//b",
        "a:1/b//",
        "a:1/../b",
        "a:1/.",
        "a:1/b c",
        "a:1\n",
        "::1:2181",
    ],
)
def test_what_is_no_address_is_refused_everywhere(connect: str) -> None:
    with pytest.raises(ValueError, match="must be host:port"):
        split_connect(connect)
    with pytest.raises(ConfigurationError, match=r"zookeeper\.connect = .*must be host:port"):
        MetadataSettings(store="zookeeper", zookeeper_connect=connect)
    with pytest.raises(OperatorFault, match="no address of ZooKeeper such as"):
        split_address(connect)
