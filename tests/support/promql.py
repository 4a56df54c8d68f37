"""Which series an expression of PromQL names, and the rules of an alert file. No evaluator: a reader of names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

EXPRESSION_WORDS: Final = frozenset(
    {
        *(
            "and",
            "or",
            "unless",
            "on",
            "ignoring",
            "group_left",
            "group_right",
            "by",
            "without",
            "offset",
            "bool",
        ),
        *("sum", "avg", "min", "max", "count", "topk", "bottomk"),
        *("rate", "increase", "delta", "histogram_quantile", "time"),
    }
)
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR: Final = re.compile(r"(?P<name>[a-z_:][a-z0-9_:]*)\s*(?:\{(?P<labels>[^}]*)\})?", re.IGNORECASE)
_FIELD: Final = re.compile(r"^ {6,10}(?:- )?(?P<name>alert|expr|summary|action|for): *(?P<value>.*)$")


def names_and_labels(expression: str) -> list[tuple[str, set[str]]]:
    """Name of each series in an expression, and the labels by which it is selected.

    Labels that the expression groups by are asked of each series, if there is only one name.
    """
    text = _STRING.sub('""', expression)
    grouped = {
        label.strip() for found in _GROUPING.findall(text) for label in found.split(",") if label.strip()
    }
    text = re.sub(r"\[[^\]]*\]", "", _GROUPING.sub(" ", text))
    used: list[tuple[str, set[str]]] = []
    for found in _SELECTOR.finditer(text):
        name = found["name"]
        if name in EXPRESSION_WORDS or not re.match(r"[a-z_:]", name):
            continue
        labels = {
            part.partition("=")[0].strip("!~ ") for part in (found["labels"] or "").split(",") if part.strip()
        }
        used.append((name, labels))
    if len({name for name, _ in used}) == 1:
        used = [(name, labels | grouped) for name, labels in used]
    return used


def rules(path: Path) -> list[dict[str, str]]:
    """The alerts of a rule file in the form that ours has: fields in lines, one expression perhaps in several."""
    found: list[dict[str, str]] = []
    field = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        match = _FIELD.match(line)
        severity = re.match(r"^ {8}labels: \{severity: (\w+)\}$", line)
        if match is None and severity is None:
            if field == "expr" and line.startswith(" " * 10):
                found[-1]["expr"] += f" {line.strip()}"
            continue
        if severity is not None:
            found[-1]["severity"], field = severity[1], "severity"
            continue
        assert match is not None
        field, value = match["name"], match["value"].strip().strip('"')
        if field == "alert":
            found.append({"alert": value})
        else:
            found[-1][field] = "" if value == "|" else value
    return found
