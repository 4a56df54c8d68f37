"""No line of the log shows what is in a record, or a secret: what every call that logs interpolates."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).parents[2] / "appliance"
LOGGING: Final = frozenset(
    {"debug", "info", "warning", "error", "exception", "critical", "log", "warn", "say", "_say"}
)
SECRET: Final = frozenset(
    {
        *("record", "records", "key", "value", "headers", "batch", "body", "payload", "view", "frame"),
        *("password", "secret", "salted_password", "hmac", "token_value", "private_key"),
    }
)
"""Names of what must not be in a line as a whole. A part of it may, such as its length or its offset."""
ALLOWED: Final = frozenset({("quota_store.py", "key")})
"""The name of a quota."""


def shown(call: ast.Call) -> Iterator[ast.expr]:
    """The expressions whose text is in the line."""
    for argument in (*call.args, *(each.value for each in call.keywords)):
        if isinstance(argument, ast.JoinedStr):
            yield from (each.value for each in argument.values if isinstance(each, ast.FormattedValue))
        else:
            yield argument


def last_name(expression: ast.expr) -> str:
    """`record.value.decode()` → value. Calls other than these are something else, such as len(value)."""
    while True:
        match expression:
            case ast.Call(func=ast.Name(id="str" | "repr" | "bytes"), args=[inner, *_]):
                expression = inner
            case ast.Call(func=ast.Attribute(value=inner, attr="decode" | "hex" | "tobytes")):
                expression = inner
            case ast.Attribute(attr=name) | ast.Name(id=name):
                return name
            case _:
                return ""


def secrets_in(source: str) -> list[tuple[int, str]]:
    """Line and name of each whole secret that a call logs."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in LOGGING or "complain" in name:
                found += [(node.lineno, each) for part in shown(node) if (each := last_name(part)) in SECRET]
    return found


def test_no_call_logs_a_record_or_a_secret() -> None:
    found = [
        f"{module.relative_to(PACKAGE)}:{line}: {name}"
        for module in sorted(PACKAGE.rglob("*.py"))
        if "cli" not in module.parts
        for line, name in secrets_in(module.read_text(encoding="utf-8"))
        if (module.name, name) not in ALLOWED
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "_logger.warning('bad record: %r', record.value)",
        "self._complain(f'bad record {record.value!r}')",
        "_logger.debug('%s', bytes(view))",
        "process.warn(f'wrong {self.password.decode()}')",
    ],
)
def test_the_check_finds_what_it_looks_for(source: str) -> None:
    assert secrets_in(source)


def test_the_check_lets_lengths_pass() -> None:
    assert not secrets_in("_logger.warning('%d records, %s', len(records), batch.delivery.partition)")
