from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.config import BrokerSettings, MetadataSettings
from tests.control.controller.instance import Instance

NewInstance = Callable[..., Instance]


@pytest.fixture
def new_instance(tmp_path: Path) -> Iterator[NewInstance]:
    """Makes instances in one data directory; their processes and shared memory are gone at the end."""
    made: list[Instance] = []

    def make(
        *,
        slots: int = 1,
        workers: int = 1,
        broker: BrokerSettings | None = None,
        metadata: MetadataSettings | None = None,
        services: int = 0,
    ) -> Instance:
        made.append(
            Instance(
                tmp_path / "data",
                slots=slots,
                workers=workers,
                broker=broker,
                metadata=metadata,
                services=services,
            )
        )
        return made[-1]

    yield make
    for instance in made:
        instance.close()


@pytest.fixture
def instance(new_instance: NewInstance) -> Instance:
    """A controller that serves, and one worker that has its (empty) assignment."""
    instance = new_instance()
    instance.start()
    instance.start_worker()
    instance.until(lambda: instance.images.version > 0)
    return instance
