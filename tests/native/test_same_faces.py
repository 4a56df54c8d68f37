"""The sync and the asyncio face have the same members, with the same arguments: who knows one knows the other."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import appliance_client
from appliance_client import aio


def members(face: type[Any]) -> dict[str, Any]:
    """Public members, and the special ones that a program calls by a statement."""
    own = {name: each for name, each in vars(face).items() if not name.startswith("_")}
    return own | {"__init__": face.__init__}


def arguments(call: Any) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(call).parameters.values()]


@pytest.mark.parametrize("name", aio.__all__)
def test_both_faces_have_the_same_members(name: str) -> None:
    sync, other = members(getattr(appliance_client, name)), members(getattr(aio, name))
    assert sorted(sync) == sorted(other)
    for member, ours in sync.items():
        theirs = other[member]
        assert isinstance(ours, property) == isinstance(theirs, property), member
        if callable(ours):
            assert arguments(ours) == arguments(theirs), member


@pytest.mark.parametrize("name", aio.__all__)
def test_both_faces_are_used_by_the_same_statements(name: str) -> None:
    sync, other = getattr(appliance_client, name), getattr(aio, name)
    for one, twin in (
        ("__enter__", "__aenter__"),
        ("__exit__", "__aexit__"),
        ("__iter__", "__aiter__"),
        ("__next__", "__anext__"),
        ("__del__", "__del__"),
    ):
        assert hasattr(sync, one) == hasattr(other, twin), one
