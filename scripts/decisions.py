"""Write docs/decisions/README.md, the index of the decision records: `python scripts/decisions.py`.

A record has the file name `NNNN-….md`, and begins so:

    # NNNN: Title that says the decision

    Date: YYYY-MM-DD. Status: accepted.

    One paragraph that says the decision.

A test checks the form of each record, and fails when the index is stale. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DECISIONS = Path(__file__).parent.parent / "docs" / "decisions"
INDEX = DECISIONS / "README.md"
BRIEF_SINCE = 84
"""Records from this number on have at most WORDS_MAX words."""
WORDS_MAX = 500

TITLE = re.compile(r"# (?:(?P<number>\d{4})[:.]? )?(?P<title>\S.*)")
META = re.compile(r"\W*(?:date|status|20\d\d)\b", re.IGNORECASE)
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
STATUS = re.compile(r"\bstatus\b\W*(?P<status>\w[^\n*]*)", re.IGNORECASE)

HEAD = """\
# Decision records

Each record says what was decided, why, and what was refused. This index is written by `python scripts/decisions.py`.
Long measurements are in [../lab/](../lab/README.md).

Read these first: [0002](0002-memory-ordering-fence.md), [0003](0003-supervision-over-socket-pairs.md),
[0020](0020-group-commit-by-log.md), [0031](0031-acks-all-waits-with-the-owner.md),
[0032](0032-a-coordinator-that-keeps-records.md), [0033](0033-a-slot-is-two-halves.md),
[0034](0034-groups-decide-on-what-is-in-the-log.md), [0042](0042-readers-off-the-disk.md),
[0054](0054-a-partition-s-worker-follows-from-its-name.md), [0080](0080-ship-and-test-the-compiled-build.md).

| number | decision | date | status |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Record:
    """The head of a decision record."""

    name: str
    number: str
    title: str
    date: str
    status: str
    words: int


class WrongForm(Exception):
    """A record does not have the form of a record, or is too long. The text says which."""


def record(name: str, text: str) -> Record:
    """Return the head of the record in the file `name`.

    Raises:
        WrongForm: the record has another form.
    """
    number = name[:4]
    title, *blocks = (block.strip() for block in text.split("\n\n") if block.strip())
    found = TITLE.fullmatch(title)
    if found is None or (found["number"] or number) != number:
        raise WrongForm(f"{name}: its first line is no title with the number {number}")
    meta = [block for block in blocks[:2] if META.match(block)]
    date, status = DATE.search("\n".join(meta)), STATUS.search("\n".join(meta))
    if date is None or status is None:
        raise WrongForm(f"{name}: date and status do not follow the title")
    if not re.match(r"[^#|>-]", "".join(blocks[len(meta) : len(meta) + 1])):
        raise WrongForm(f"{name}: no paragraph that says the decision follows date and status")
    words = len(text.split())
    if int(number) >= BRIEF_SINCE and words > WORDS_MAX:
        raise WrongForm(f"{name}: {words} words; the maximum is {WORDS_MAX}")
    return Record(name, number, found["title"], date[0], _lower(status["status"].strip(" .")), words)


def records(directory: Path = DECISIONS) -> list[Record]:
    """Return the heads of all records, in the order of their numbers. Raises WrongForm."""
    return [
        record(path.name, path.read_text(encoding="utf-8"))
        for path in sorted(directory.glob("*.md"))
        if path.name != INDEX.name
    ]


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def index(found: list[Record]) -> str:
    """Return the whole index."""
    rows = [
        f"| [{each.number}]({each.name}) | {each.title} | {each.date} | {each.status} |\n" for each in found
    ]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    INDEX.write_text(index(records()), encoding="utf-8")
