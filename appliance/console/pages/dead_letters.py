"""Dead letters: the groups that have some, a list with filters, one with its history; replay and purge.

What the topics say is read by `views/dead_letters.py`, as `appliance dead-letters` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

from appliance.config.retry_configs import RETRY_DEAD_LETTERS, RETRY_GROUP
from appliance.console.decoding import shown
from appliance.console.kafka_link import BrokerFault, not_done
from appliance.console.pages.times import asked_ms
from appliance.console.reading import Budget
from appliance.console.server import Response
from appliance.console.topic_link import BudgetOver, LinkReader, LinkWriter
from appliance.console.visit import BadInput, NotThere, Visit
from appliance.views.dead_letters import DeadLetter, DeadLetterLog, Filter, Replay
from appliance.views.retries import Retries, all_retries, retries_of
from appliance.views.topic_access import NotShown

LIMIT: Final = 100
LIMIT_MAX: Final = 1_000
CHANGED_MAX: Final = 5_000
"""Dead letters that one press of a button moves. With more, the next press goes on."""
CHANGE_BYTES: Final = 256 << 20
CHANGE_S: Final = 60.0
PURGE_AT_ONCE: Final = 1_000
_DONE: Final = {"replay": "replayed", "purge": "purged"}
FIELDS: Final = ("id", "exception", "since", "key", "header")


@dataclass(frozen=True, slots=True)
class _Scene:
    """One group's dead letters, and which of them a person wants."""

    retries: Retries
    wanted: Filter
    reader: LinkReader

    def log(self, writer: LinkWriter | None = None) -> DeadLetterLog:
        return DeadLetterLog(self.reader, self.retries.dead_letter_topic, writer)


def dead_letters(visit: Visit) -> Response:
    """The groups with retries, and how many records their dead-letter topics have."""
    topics = visit.image.topics
    names = set()
    for name in visit.topic_names():
        configs = topics[name].configs
        if configs.get(RETRY_GROUP):
            names |= {name, configs.get(RETRY_DEAD_LETTERS, "")}
    found = all_retries(LinkReader(visit, Budget()), sorted(names - {""}))
    records = {
        each.dead_letter_topic: visit.look.topic(topics[each.dead_letter_topic]).records
        for each in found
        if each.dead_letter_topic in topics
    }
    return visit.page("dead_letters.html", rows=found, records=records)


def _scene(visit: Visit, budget: Budget) -> _Scene:
    reader = LinkReader(visit, budget)
    group, topic = visit.asked("group"), visit.asked("topic")
    if not group or not topic:
        raise NotThere("there are no dead letters without a group and a topic")
    retries = retries_of(reader, group, topic)
    wanted = Filter(
        ids=tuple(visit.asked("id").split()),
        key=visit.asked("key") or None,
        since_ms=asked_ms(visit, "since"),
        exception=visit.asked("exception") or None,
        headers=(visit.asked("header"),) if visit.asked("header") else (),
    )
    return _Scene(retries, wanted, reader)


def _query(visit: Visit) -> str:
    fields = {name: visit.asked(name) for name in ("group", "topic", *FIELDS) if visit.asked(name)}
    return urlencode(fields, quote_via=quote)


def letters(visit: Visit) -> Response:
    """The dead letters of a group on a topic that the filters choose."""
    scene = _scene(visit, Budget())
    limit = visit.number("limit", LIMIT, minimum=1, maximum=LIMIT_MAX)
    found: list[DeadLetter] = []
    text = ""
    try:
        for each in scene.log():
            if scene.wanted.chooses(each):
                if len(found) == limit:
                    text = f"There are more: these are the first {limit}."
                    break
                found.append(each)
    except BudgetOver:
        text = "The time for one page is over: there may be more. Narrow the search."
    return visit.page(
        "dead_letter_list.html",
        retries=scene.retries,
        rows=found,
        text=text,
        fields={name: visit.asked(name) for name in FIELDS},
        limit=limit,
        query=_query(visit),
    )


def letter(visit: Visit) -> Response:
    """One dead letter with its history, value and headers."""
    scene = _scene(visit, Budget())
    found = next((each for each in scene.log() if each.identity == visit.asked("id")), None)
    if found is None:
        raise NotThere(f"there is no dead letter {visit.asked('id')}: it may have been replayed or purged")
    source = scene.retries.topic  # a dead letter has the schema of the topic that it comes from
    return visit.page(
        "dead_letter.html",
        retries=scene.retries,
        letter=found,
        key=visit.shown(found.key, topic=source, part="key"),
        value=visit.shown(found.value, topic=source, part="value"),
        headers=[
            (name[:1000], shown(value, form="auto", bytes_max=4096)) for name, value in found.headers[:100]
        ],
        headers_count=len(found.headers),
    )


def change_page(visit: Visit) -> Response:
    """The dry run of a replay or a purge: which dead letters it would move."""
    scene, action = _scene(visit, Budget()), _action(visit)
    count = 0
    first: list[DeadLetter] = []
    is_complete = True
    try:
        for each in scene.log():
            if scene.wanted.chooses(each):
                count += 1
                if len(first) < 20:
                    first.append(each)
    except BudgetOver:
        is_complete = False
    return visit.page(
        "dead_letter_change.html",
        retries=scene.retries,
        action=action,
        count=count,
        now=min(count, CHANGED_MAX),
        first=first,
        is_complete=is_complete,
        fields={name: visit.asked(name) for name in FIELDS},
        query=_query(visit),
    )


def _action(visit: Visit) -> str:
    action = visit.asked("action")
    if action not in _DONE:
        raise BadInput(f"action: must be one of {', '.join(_DONE)}")
    return action


def change(visit: Visit) -> Response:
    """Replay or purge what the filters choose, at most CHANGED_MAX."""
    budget = Budget.of(CHANGE_BYTES, CHANGE_S)
    scene, action = _scene(visit, budget), _action(visit)
    if action == "replay" and not scene.retries.is_enabled:
        raise BadInput(
            f"retries of the group {scene.retries.group} on {scene.retries.topic} are disabled: enable them first"
        )
    moved, done = _Moved(), _DONE[action]
    text = f"no more dead letters were {done}"
    try:
        is_complete = _move(visit, scene, action, moved)
    except BudgetOver:
        is_complete = False
    except (BrokerFault, NotShown) as fault:
        visit.failed(not_done(text, fault))
        is_complete = True
    if moved.count or is_complete:
        visit.done(f"{moved.count} dead letters were {done}")
    if not is_complete:
        visit.failed("There are more: repeat it to go on.")
    return visit.back_to("/dead-letters/of", group=scene.retries.group, topic=scene.retries.topic)


@dataclass(slots=True)
class _Moved:
    count: int = 0


def _move(visit: Visit, scene: _Scene, action: str, moved: _Moved) -> bool:
    """Move dead letters; return whether these were all that the filters choose."""
    writer = LinkWriter(visit)
    log = scene.log(writer)
    replay = Replay(log, scene.retries.retry_topic, writer)
    batch: list[DeadLetter] = []
    is_complete = True

    def flush() -> None:
        if action == "replay":
            replay.flush()
            moved.count = replay.moved
        elif batch:
            log.remove(batch)
            moved.count += len(batch)
            batch.clear()

    chosen = 0
    try:
        for each in log:
            if not scene.wanted.chooses(each):
                continue
            if chosen == CHANGED_MAX:
                is_complete = False
                break
            chosen += 1
            if action == "replay":
                replay.add(each)
                moved.count = replay.moved
            else:
                batch.append(each)
                if len(batch) == PURGE_AT_ONCE:
                    flush()
    finally:
        flush()
    log.trim()
    return is_complete
