"""How deep a JSON text is, before a parser that recurses sees it."""

from __future__ import annotations


def json_depth(text: str) -> int:
    """Return how many objects and arrays are open at once, at most. Brackets inside of strings count, too."""
    depth = deepest = 0
    for character in text:
        if character in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "}]":
            depth -= 1
    return deepest
