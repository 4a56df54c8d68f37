"""Writes docs/apis.md from the table of APIs: `python -m appliance.protocol.api_table [FILE]`.

Without FILE the page goes to standard output. A test fails when the page in docs/ is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from appliance.protocol.api_versions import ADVERTISED, NEVER, ApiKey

_HEAD: Final = """\
# APIs

This page is generated with `python -m appliance.protocol.api_table docs/apis.md`. Change
`appliance/protocol/api_versions.py`, not the page.

The version ranges are those of Apache Kafka 4.3. *Advertised* are the versions in the broker's answer to ApiVersions.
The broker advertises only APIs that it serves. It advertises Produce from version 0, because old versions of librdkafka
need this. The broker rejects Produce requests below version 3 (KAFKA-18659). *Flexible from* is the first version with
tagged fields (KIP-482). [left-out.md](left-out.md) lists the parts of the served APIs that are missing.

"""

_COLUMNS: Final = "| key | API | versions | flexible from | advertised |\n|---|---|---|---|---|\n"


def api_page() -> str:
    """docs/apis.md as it should stand."""
    return (
        _HEAD
        + "## Served\n\n"
        + _rows(served=True)
        + "\n## Not served\n\nThe broker does not serve these APIs of Apache Kafka.\n\n"
        + _rows(served=False)
    )


def _rows(*, served: bool) -> str:
    advertised = {row.api_key: _range(row.min_version, row.max_version) for row in ADVERTISED}
    lines = [
        f"| {int(api)} | {api.title} | {_range(api.min_version, api.max_version)} "
        f"| {'never' if api.first_flexible == NEVER else api.first_flexible} "
        f"| {advertised.get(int(api), 'no')} |\n"
        for api in ApiKey
        if api.served is served
    ]
    return _COLUMNS + "".join(lines)


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(api_page(), encoding="utf-8")
    else:
        sys.stdout.write(api_page())
