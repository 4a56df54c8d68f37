"""Times that a person types into a form."""

from __future__ import annotations

from appliance.console.visit import BadInput, Visit
from appliance.views.moments import FORMS, moment_ms


def asked_ms(visit: Visit, name: str) -> int | None:
    """Return the milliseconds since 1970 of a field: a time in UTC, a time ago such as `30m`; None for an empty one.

    Raises:
        BadInput: it is neither.
    """
    text = visit.asked(name).strip()
    if not text:
        return None
    try:
        return max(0, moment_ms(text))
    except ValueError:
        raise BadInput(f"{name}: write {FORMS}") from None
