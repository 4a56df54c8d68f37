"""Fixtures of the control wing's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control.instances import Instance

StartInstance = Callable[..., Instance]


@pytest.fixture
def start_instance(tmp_path: Path) -> Iterator[StartInstance]:
    """Starts instances of stand-ins on one data directory; whatever they leave is removed."""
    started: list[Instance] = []

    def start(*arguments: str, **options: Any) -> Instance:
        started.append(Instance(tmp_path, *arguments, **options))
        return started[-1]

    yield start
    for instance in started:
        instance.close()
