"""`meta.properties`: whose log directory this is.

    version=1
    cluster.id=4L6g3nShT-eMCtK--X86sw
    node.id=0
    directory.id=Sx0yr0R9TZGEz-1zHw9vXg

Java properties, version 1. A directory that names another cluster or node is refused: serving it would mix two
clusters' records. Source: `MetaProperties.java`; KIP-858 for the directory id.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from appliance.errors import OperatorFault
from appliance.log.checkpoint import replace_file
from appliance.log.faults import storage_faults
from appliance.log.file_names import META_PROPERTIES


def claim(directory: Path, *, cluster_id: str, node_id: int) -> None:
    """Makes `directory` this node's, or finds that it is.

    Raises:
        OperatorFault: it belongs to another cluster or node, or to an unknown version of Kafka.
        StorageFault: the file cannot be read or written.
    """
    path = directory / META_PROPERTIES
    known = read_properties(path)
    if not known:
        values = {
            "version": "1",
            "cluster.id": cluster_id,
            "node.id": str(node_id),
            "directory.id": urlsafe_b64encode(uuid4().bytes).decode().rstrip("="),
        }
        replace_file(path, "".join(f"{name}={value}\n" for name, value in values.items()).encode())
        return
    if known.get("version") not in ("0", "1"):
        raise OperatorFault(f"{path} is of version {known.get('version')!r}, which is not known here")
    # Version 0, of brokers under ZooKeeper, calls the node a broker and may leave the cluster out.
    node = known.get("node.id", known.get("broker.id"))
    cluster = known.get("cluster.id", cluster_id)
    if cluster != cluster_id or node != str(node_id):
        raise OperatorFault(
            f"{directory} belongs to node {node} of cluster {cluster}, not to node {node_id} of cluster"
            f" {cluster_id}; give this one a directory of its own"
        )


def directory_id(directory: Path) -> str | None:
    """The id that the directory was given when it was first taken; None for one that never was.

    Raises:
        StorageFault: it cannot be read.
    """
    return read_properties(directory / META_PROPERTIES).get("directory.id")


def read_properties(path: Path) -> Mapping[str, str]:
    """The properties of a file; none where there is no file.

    Raises:
        StorageFault: it cannot be read.
    """
    with storage_faults(path):
        try:
            text = path.read_text(encoding="latin-1")
        except FileNotFoundError:
            return {}
    values = {}
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            name, _, value = stripped.partition("=")
            values[name.strip()] = value.strip().replace("\\", "")
    return values
