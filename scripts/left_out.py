"""Write docs/left-out.md from the heads of the handlers: `python -m scripts.left_out [FILE]`.

The head of a handler begins with the name of its API and the versions that it serves. A paragraph of the head that
begins with `Left out:` says which parts of the API are missing. Handlers are found by their heads, wherever they are in
the package. Without FILE the page goes to standard output. A test fails when the page in docs/ is stale.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from appliance.protocol.api_versions import ApiKey

PACKAGE = Path(__file__).parent.parent / "appliance"
CODECS = PACKAGE / "protocol"
"""Codecs have heads like those of handlers, but decide nothing."""

BEGINS = re.compile(r'(?:#.*\n|\s)*r?"""\s*([A-Z]\w+) (?:\(\d+\), versions )?\d+(?:-\d+)?\b')
"""The head of a handler: the docstring at the beginning of its module, with name and versions first."""

HEAD = """\
# What is left out of each API

This page is generated from the heads of the handlers with `python -m scripts.left_out docs/left-out.md`.
Change a head, not the page.

[apis.md](apis.md) lists the versions of each API, and the APIs that the appliance does not serve. The table on this
page lists the parts of a served API that the appliance does not support. If an authorizer is configured, every API
checks permissions ([acls.md](acls.md)). [quotas.md](quotas.md#differences-from-apache-kafka) lists the differences of
quotas. If an API has no row, we know of no other difference from Apache Kafka 4.3.

| API | versions | left out |
|---|---|---|
"""


def heads(package: Path = PACKAGE) -> dict[ApiKey, str]:
    """Return the head of each served API's handler."""
    served = {api.title: api for api in ApiKey if api.served}
    found: dict[ApiKey, str] = {}
    for module in sorted(package.rglob("*.py")):
        if module.is_relative_to(CODECS):
            continue
        text = module.read_text(encoding="utf-8")
        begins = BEGINS.match(text)  # most modules have no such head, and parsing all of them takes seconds
        if begins and begins[1] in served:
            found[served[begins[1]]] = ast.get_docstring(ast.parse(text)) or ""
    return found


def left_out(head: str) -> Iterator[str]:
    """Yield the texts behind `Left out:`, each a line."""
    for paragraph in head.split("\n\n"):
        if paragraph.startswith("Left out:"):
            text = " ".join(paragraph.removeprefix("Left out:").partition("Source:")[0].split())
            yield text[0].upper() + text[1:]


def page() -> str:
    """Return the whole page."""
    rows = [
        f"| {api.title} | {versions(api)} | {' '.join(texts)} |\n"
        for api, head in sorted(heads().items(), key=lambda each: int(each[0]))
        if (texts := list(left_out(head)))
    ]
    return HEAD + "".join(rows)


def versions(api: ApiKey) -> str:
    """Return the served versions, such as `0-3`."""
    return (
        f"{api.min_version}-{api.max_version}" if api.min_version < api.max_version else f"{api.min_version}"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
