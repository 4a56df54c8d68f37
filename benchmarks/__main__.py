"""The command line.

python -m benchmarks run [CASE …]       alternating rounds, results page      (make bench)
python -m benchmarks quick CASE …       one look at a broker, nothing kept
python -m benchmarks profile CASE       flame graphs of one case              (make profile)
python -m benchmarks cases              what can be measured
python -m benchmarks page FILE.json     write page and plots of a kept run again
python -m benchmarks plan [CASE …]      what a run would do, with the time of each case
python -m benchmarks log [PROGRAM …]    the log by itself, of micro/            (make bench-log)
python -m benchmarks publish            README, docs/scaling.md and pages from the newest kept runs
"""

import argparse
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.awake import wakes_us
from benchmarks.brokers import MAKERS
from benchmarks.brokers.setting import SETTINGS
from benchmarks.cases import CASES
from benchmarks.cases.case import QUICK, Case, Scale
from benchmarks.places import CACHE, RESULTS, ROOT
from benchmarks.plan import Plan, minutes, timetable
from benchmarks.results import OURS, Run, kept_before, load, save

WHOLE_BROKERS, WHOLE_ROUNDS = "appliance,mock,kafka", 5
"""What a kept run has at least: others would be compared with it, and README be made of it."""


def main() -> int:
    """Returns the exit status: 1 when a figure was void or a row fell."""
    options = _parser().parse_args()
    # A broker must not outlive the harness: SIGTERM unwinds as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    match options.command:
        case "run":
            return _run(options)
        case "plan":
            print(timetable(_plan(options)))
        case "quick":
            from benchmarks.quick import look

            return look(_chosen(options.cases), options)
        case "profile":
            from benchmarks.profile import record

            return record(_chosen(options.cases)[0], options)
        case "cases":
            for name, found in CASES.items():
                print(f"{name:24}{found.what}{' (by name)' if found.by_name else ''}")
        case "wakes":
            for way, us in wakes_us().items():
                print(f"{way:10}{us:8.1f} µs")
        case "page":
            _write(load(options.file), options.file.with_suffix(""))
        case "log":
            from benchmarks.log_figures import measure

            path, fell = measure(options.programs, busy_limit=options.busy_limit)
            print(path.relative_to(ROOT))
            return 1 if fell else 0
        case "publish":
            from benchmarks.publish import publish

            for path in publish():
                print(path.relative_to(ROOT))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Figures of the appliance.")
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="alternating rounds, results page")
    _add_plan(run)

    planned = commands.add_parser("plan", help="what a run would do, with the time of each case")
    _add_plan(planned)

    quick = commands.add_parser("quick", help="one look at one broker, nothing kept")
    quick.add_argument("cases", nargs="+", metavar="CASE")
    which = quick.add_mutually_exclusive_group()
    which.add_argument("--at", metavar="HOST:PORT", help="a broker that runs already")
    which.add_argument("--broker", default="appliance", choices=sorted(MAKERS))
    quick.add_argument("--setting", default="", choices=sorted(SETTINGS))
    quick.add_argument("--seconds", type=float, default=2.0)
    quick.add_argument("--repeat", type=int, default=1)

    profile = commands.add_parser("profile", help="flame graphs of one case")
    profile.add_argument("cases", nargs=1, metavar="CASE")
    profile.add_argument("--at", metavar="HOST:PORT", help="a broker that runs already")
    profile.add_argument("--setting", choices=sorted(SETTINGS), help="by default what the case is made for")
    profile.add_argument("--seconds", type=float, default=5.0)
    profile.add_argument(
        "--native", action="store_true", help="the compiled build, with stacks of its C code"
    )

    commands.add_parser("cases", help="what can be measured")
    commands.add_parser("wakes", help="how soon a core is woken here, by what idle cores do")
    page = commands.add_parser("page", help="write the page of a kept run again")
    page.add_argument("file", type=Path)

    log = commands.add_parser("log", help="the log by itself, without clients")
    log.add_argument("programs", nargs="*", metavar="PROGRAM", help="of benchmarks/micro")
    _add_busy_limit(log)
    commands.add_parser("publish", help="README, docs/scaling.md and pages from the newest kept runs")
    return parser


def _add_plan(parser: argparse.ArgumentParser) -> None:
    """What chooses cases, brokers and rounds."""
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all when none is given")
    parser.add_argument("--brokers", default=WHOLE_BROKERS, help=f"of {', '.join(MAKERS)}")
    parser.add_argument("--rounds", type=int, default=WHOLE_ROUNDS)
    _add_busy_limit(parser)
    parser.add_argument("--quick", action="store_true", help="small, kept in the cache only")
    parser.add_argument(
        "--scaling", action="store_true", help="the cases about growth; kept as a page of its own"
    )
    parser.add_argument("--all", action="store_true", help="also the cases that run only by name")
    parser.add_argument(
        "--also", default="", metavar="CASE,…", help="these of them, beside the usual ones; kept with them"
    )
    parser.add_argument(
        "--settings",
        default=",".join(SETTINGS),
        metavar="NAME,…",
        help="of '' (as shipped), pinned, fsync and slots; by default each case under those it is made for",
    )


def _add_busy_limit(parser: argparse.ArgumentParser) -> None:
    limit = Scale().busy_limit_share
    parser.add_argument("--busy-limit", type=float, default=limit, metavar="CORES", help="void above")


def _chosen(names: list[str]) -> tuple[Case, ...]:
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise SystemExit(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    return tuple(CASES[name] for name in names) or tuple(CASES.values())


def _plan(options: argparse.Namespace) -> Plan:
    brokers = tuple(options.brokers.split(","))
    if unknown := [name for name in brokers if name not in MAKERS]:
        raise SystemExit(f"no broker {', '.join(unknown)}; there are {', '.join(MAKERS)}")
    settings = options.settings.split(",")
    if unknown := [name for name in settings if name not in SETTINGS]:
        raise SystemExit(f"no setting {', '.join(unknown)}; there are {', '.join(map(repr, SETTINGS))}")
    cases = _chosen(
        [name for name in CASES if name.startswith("scale_")] if options.scaling else options.cases
    )
    if not (options.cases or options.all or options.scaling):
        also = _chosen(options.also.split(",")) if options.also else ()
        cases = tuple(case for case in cases if not case.by_name or case in also)
    return Plan(
        brokers=brokers,
        cases=cases,
        rounds=options.rounds,
        scale=replace(QUICK if options.quick else Scale(), busy_limit_share=options.busy_limit),
        settings=tuple(SETTINGS[name] for name in settings),
    )


def _run(options: argparse.Namespace) -> int:
    from benchmarks.rounds import run

    plan = _plan(options)
    print(f"about {minutes(plan):.0f} minutes", file=sys.stderr, flush=True)
    began = time.monotonic()
    done = run(
        plan, lambda line: print(f"{time.monotonic() - began:6.0f} s  {line}", file=sys.stderr, flush=True)
    )
    ours_is_there = not any((void.round, void.broker) == (0, OURS) for void in done.voids)
    whole = ours_is_there and _is_whole(options)
    done = replace(done, kind="scaling" if options.scaling else "", command=_command())
    fell = _write(done, (RESULTS if whole else CACHE / "results") / done.name)
    return 1 if fell or not ours_is_there or any(void.round for void in done.voids) else 0


def _command() -> str:
    return shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])


def _is_whole(options: argparse.Namespace) -> bool:
    """Whether it is kept, and what the next runs are compared with: all cases, brokers, settings and rounds."""
    if options.quick or options.cases or options.settings != ",".join(SETTINGS):
        return False
    return bool(options.scaling) or (
        options.rounds >= WHOLE_ROUNDS and set(WHOLE_BROKERS.split(",")) <= set(options.brokers.split(","))
    )


def _write(run: Run, stem: Path) -> bool:
    from benchmarks import scaling_page
    from benchmarks.guard import falls
    from benchmarks.page import page
    from benchmarks.plots import draw

    kept = kept_before(run)
    save(run, stem)
    text = page(run, *kept)
    stem.with_suffix(".md").write_text(text)
    print(text)
    if not scaling_page.draw(run, stem) + draw(run, stem):
        print("(no plots: nothing to draw, or matplotlib is not installed)", file=sys.stderr)
    print(f"kept in {stem.parent.name}/{stem.name}.{{json,md}}, its plots beside it", file=sys.stderr)
    return bool(falls(run, *kept))


if __name__ == "__main__":
    raise SystemExit(main())
