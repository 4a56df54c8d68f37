"""One look at one broker while somebody tunes it: nothing is kept, a busy machine is only mentioned."""

import argparse
from contextlib import AbstractContextManager, nullcontext

from benchmarks import awake
from benchmarks.brokers.broker import Broker
from benchmarks.brokers.running import Running
from benchmarks.brokers.setting import SETTINGS, Setting
from benchmarks.cases.case import Bench, Case, Figures, Scale, run_case
from benchmarks.figures import BY_KEY
from benchmarks.machine import GIB, Patience, WarmMemory
from benchmarks.places import DATA
from benchmarks.rounds import fresh
from benchmarks.void import Void


def look(cases: tuple[Case, ...], options: argparse.Namespace) -> int:
    """Run the cases and print their figures. Returns the exit status."""
    try:
        return _look(cases, options)
    except Void as why:
        print(f"VOID: {why}")
        return 1


def _look(cases: tuple[Case, ...], options: argparse.Namespace) -> int:
    if any(case.awake for case in cases):
        print(f"cores kept awake: {awake.choice()}", flush=True)
    with _broker(options.at, options.broker, SETTINGS[options.setting]) as broker:
        streams = any(case.lends_bytes >= GIB for case in cases)
        bench = Bench(
            broker=broker,
            scale=Scale(
                stream_bytes=GIB // 2,
                backlog_bytes=GIB // 2,
                seconds=options.seconds,
                idle_seconds=5.0,
                idle_connections=500,
                busy_limit_share=float("inf"),
            ),
            memory=WarmMemory(3 * GIB if streams else GIB // 2, folder=DATA),
        )
        failed, patience = False, Patience()
        for _ in range(options.repeat):
            for case in cases:
                try:
                    show(case, case.run(bench) if case.own else run_case(case, bench, patience))
                except Void as why:
                    failed = True
                    print(f"{case.name}: VOID: {why}", flush=True)
    return 1 if failed else 0


def show(case: Case, figures: Figures) -> None:
    """Figures on one line, then the broker's processor time of each process on the next."""
    main: list[str] = []
    detail: list[str] = []
    for name, value in figures.items():
        unit = BY_KEY[f"{case.name}.{name}"].unit if f"{case.name}.{name}" in BY_KEY else ""
        (detail if " " in name else main).append(
            f"{name} {value:,.4g}{' ' + unit if unit not in name else ''}"
        )
    print(f"{case.name}: {'  '.join(main)}", flush=True)
    if detail:
        print(f"    {'  '.join(detail)}", flush=True)


def _broker(at: str | None, name: str, setting: Setting) -> AbstractContextManager[Broker]:
    if at is None:
        return fresh(name, setting)
    return nullcontext(Running(at))
