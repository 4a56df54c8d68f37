"""The plugin for pytest: the fixtures `kafka_broker`, `kafka_broker_module`, `kafka_broker_session` and a factory.

    def test_it_delivers(kafka_broker):
        producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers)

    @pytest.mark.kafka_broker(slots=3, options={"min.insync.replicas": 2})
    def test_it_survives(kafka_broker):
        kafka_broker.kill("ioproc")

pytest loads it in every environment with the appliance, also for tests that use no broker. Therefore it imports the
rest of the appliance only when a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

if TYPE_CHECKING:
    from appliance.testing.broker import Broker

MARKER: Final = "kafka_broker"
_LOG_LINES: Final = 100
Scope = Literal["session", "package", "module", "class", "function"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("kafka_broker_slots", "Slots of the kafka_broker fixtures (default: 1).", default="1")
    parser.addini(
        "kafka_broker_options",
        "Options of the kafka_broker fixtures, one NAME=VALUE a line.",
        type="linelist",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(slots=1, options={{}}, port=None, directory=None): what broker the fixture gives this test "
        "(or, as pytestmark, this module).",
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the broker's code be loaded while pytest does other things, where a test will need it."""
    if not session.config.option.collectonly and any(
        name.startswith(MARKER) for item in session.items for name in getattr(item, "fixturenames", ())
    ):
        from appliance.testing.launcher import launcher

        launcher().warm_up()


@pytest.fixture
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A fresh broker for this test."""
    with _broker(request) as broker:
        yield broker


@pytest.fixture(scope="module")
def kafka_broker_module(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """One broker for the tests of a module."""
    with _broker(request) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_broker_session(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """One broker for the whole run; with pytest-xdist, one for each worker."""
    with _broker(request) as broker:
        yield broker


@pytest.fixture
def kafka_broker_factory(request: pytest.FixtureRequest) -> Iterator[Callable[..., Broker]]:
    """Start as many brokers as a test wants: `kafka_broker_factory(slots=3)`. They are closed after the test."""
    from appliance.testing.broker import Broker

    started: list[Broker] = []

    def start(**arguments: Any) -> Broker:
        broker = Broker(**_merged([_from_ini(request.config), arguments]))
        started.append(broker)
        return broker.start()

    try:
        yield start
    finally:
        for broker in reversed(started):
            broker.close()


def broker_fixture(*, scope: Scope = "session", name: str | None = None, **arguments: Any) -> Any:
    """Return a fixture that gives a broker: `broker = broker_fixture(scope="module", slots=3)`.

    Args:
        scope: pytest's.
        name: the fixture's name, where it is not that of the variable.
        arguments: those of `appliance.testing.Broker`.
    """

    @pytest.fixture(scope=scope, name=name)
    def made(request: pytest.FixtureRequest) -> Iterator[Broker]:
        from appliance.testing.broker import Broker

        with Broker(**_merged([_from_ini(request.config), arguments])) as broker:
            yield broker

    return made


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Show what the broker printed below the traceback of a test that failed."""
    outcome = yield
    report = outcome.get_result()
    if not report.failed:
        return
    for name, value in getattr(item, "funcargs", {}).items():
        # Not imported where no test uses a broker.
        if type(value).__module__ == "appliance.testing.broker" and hasattr(value, "log"):
            report.sections.append((f"log of {name}", value.log(_LOG_LINES)))


def _broker(request: pytest.FixtureRequest) -> Broker:
    """Return the broker that the test wants, not started. The parameter wins over the marker."""
    from appliance.testing.broker import Broker

    given = getattr(request, "param", None)
    if isinstance(given, int):
        given = {"slots": given}
    elif given is not None and not isinstance(given, Mapping):
        raise pytest.UsageError(f"the parameter of a broker is a number of slots or a mapping, not {given!r}")
    marker = request.node.get_closest_marker(MARKER)
    all_of_them = [_from_ini(request.config), _of_marker(marker) if marker is not None else {}, given or {}]
    return Broker(**_merged(all_of_them))


def _merged(all_of_them: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the arguments together, the last one's first in line; options are merged one by one."""
    arguments: dict[str, Any] = {}
    for each in all_of_them:
        options = {**arguments.get("options", {}), **each.get("options", {})}
        arguments |= {**each, "options": options}
    return arguments


def _of_marker(marker: pytest.Mark) -> dict[str, Any]:
    if marker.args:
        raise pytest.UsageError(f"the marker {MARKER} takes keyword arguments only, such as slots=3")
    return dict(marker.kwargs)


def _from_ini(config: pytest.Config) -> dict[str, Any]:
    options = {}
    for line in config.getini("kafka_broker_options"):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"kafka_broker_options: {line!r}: must be NAME=VALUE")
        options[name.strip()] = value.strip()
    slots = config.getini("kafka_broker_slots")
    if not str(slots).isdecimal():
        raise pytest.UsageError(f"kafka_broker_slots: {slots!r}: must be a number")
    return {"slots": int(slots), "options": options}
