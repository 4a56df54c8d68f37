from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import appliance
from appliance.build import NAMES, build
from tests.support.second_try import (
    pytest_collection_modifyitems,
    pytest_sessionstart,
    pytest_terminal_summary,
)
from tests.support.store import ADDRESS, is_zookeeper_asked_for
from tests.support.zookeeper import ZooKeeper

if os.environ.get("TESTED_BUILD", build()) != build():
    raise pytest.UsageError(
        f"asked for the {os.environ['TESTED_BUILD']} build, but Python finds the {build()} one first"
    )

__all__ = ["pytest_collection_modifyitems", "pytest_sessionstart", "pytest_terminal_summary"]

# The gate tries the same examples each time, so that what it says is about the change; `make test-all` looks for new
# ones, and `make quick` tries few. How long one takes is the machine's affair in all of them.
_ANY_PACE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", _ANY_PACE, derandomize=True)
settings.register_profile("explore", _ANY_PACE)
settings.register_profile("quick", settings.get_profile("gate"), max_examples=10)
settings.load_profile("gate")

# Logs that a test gives up, as a killed process would, keep their descriptors until the run ends: on a machine
# that allows 1,024 for a start, the tests with hundreds of connections would find none left.
_DESCRIPTORS = 8192
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
if _soft < _DESCRIPTORS:
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_DESCRIPTORS, _hard), _hard))

# A shell that starts the run in the background has it ignore Ctrl-C, and every program it tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


THIRD_PARTY_WARNINGS = (
    # kafka-python 3 loads its 109 schemas with functions that Python deprecates: 218 warnings in each run.
    "ignore:read_text is deprecated:DeprecationWarning:kafka.protocol.schemas.load_json",
    "ignore:open_text is deprecated:DeprecationWarning:importlib.resources._legacy",
)


def pytest_configure(config: pytest.Config) -> None:
    for line in THIRD_PARTY_WARNINGS:
        config.addinivalue_line("filterwarnings", line)


def pytest_report_header() -> str:
    return f"tested: the {NAMES[build()]} in {Path(appliance.__file__).parent.parent}"


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A server for all tests that do not harm it; each takes a chroot of its own."""
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A server for one test, to be paused and killed."""
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session", autouse=True)
def _chosen_store(request: pytest.FixtureRequest) -> None:
    """With APPLIANCE_STORE=zookeeper every appliance of the run keeps its tree there."""
    if is_zookeeper_asked_for():
        server = request.getfixturevalue("zookeeper")
        assert isinstance(server, ZooKeeper)
        os.environ[ADDRESS] = server.address
