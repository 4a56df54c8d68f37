"""Rows, goals and the regression guard, from runs written by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.figures import BY_KEY, Goal
from benchmarks.goals import behind, missed_elsewhere, unshown
from benchmarks.guard import falls
from benchmarks.page import page
from benchmarks.results import Run, VoidCase, kept_before, load, rows, save

MB_S = "throughput_1k.in_mb_s"
P50 = "latency.p50_us"


def run(
    ours: list[dict[str, float]], mock: list[dict[str, float]] | None = None, *, commit: str = "aaa"
) -> Run:
    return Run(
        date="2026-01-01",
        commit=commit,
        dirty=False,
        machine={
            "cores": 2,
            "processor": "P",
            "memory_gib": 8,
            "kernel": "6",
            "virtual": "yes",
            "python": "3.11",
        },
        versions={"appliance": "1", "mock": "2"},
        rounds=len(ours),
        pinned="",
        taken={"appliance": ours, "mock": mock or []},
        voids=[],
    )


def test_a_void_round_is_a_gap_and_not_a_zero() -> None:
    (row,) = rows(run([{MB_S: 100.0}, {}, {MB_S: 300.0}]))
    spread = row.values["appliance"]
    assert (spread.median, spread.lowest, spread.highest, spread.rounds) == (200.0, 100.0, 300.0, 2)


def test_a_ratio_compares_rounds_that_both_have() -> None:
    (row,) = rows(run([{MB_S: 100.0}, {MB_S: 50.0}, {}], [{MB_S: 200.0}, {}, {MB_S: 1.0}]))
    assert row.ratios == {"mock": 0.5}


def test_beside_nothing_or_less_there_is_no_ratio() -> None:
    """Memory a connection: a JVM's heap may shrink while they come."""
    (row,) = rows(run([{MB_S: 100.0}, {MB_S: 50.0}, {MB_S: 9.0}], [{MB_S: 0.0}, {MB_S: -2.0}, {MB_S: 3.0}]))
    assert row.ratios == {"mock": 3.0}
    (row,) = rows(run([{MB_S: 100.0}], [{MB_S: -2.0}]))
    assert row.ratios == {}
    assert Goal(0.25, "mock").reached(row.figure.better, value=100.0, ratios=row.ratios) is None


def test_a_quotient_of_two_figures_is_made_of_rounds_that_have_both() -> None:
    key, one, many = "slots/throughput_1k.in_of_one_slot", MB_S, f"slots/{MB_S}"
    made = {row.figure.key: row for row in rows(run([{one: 100.0, many: 60.0}, {one: 100.0}, {many: 9.0}]))}
    spread = made[key].values["appliance"]
    assert (spread.median, spread.rounds) == (0.6, 1)
    assert key not in {row.figure.key for row in rows(run([{one: 100.0}]))}


def test_a_goal_beside_a_missing_rival_is_neither_reached_nor_missed() -> None:
    figure = BY_KEY[P50]
    assert Goal(0.2, "kafka").reached(figure.better, value=10.0, ratios={}) is None
    assert Goal(60).reached(figure.better, value=59.0, ratios={}) is True
    assert Goal(60).reached(figure.better, value=61.0, ratios={}) is False


def test_a_fall_beyond_the_noise_is_named() -> None:
    kept, now = run([{P50: 50.0, MB_S: 900.0}]), run([{P50: 70.0, MB_S: 890.0}], commit="bbb")
    assert [fall.row.figure.key for fall in falls(now, kept)] == [P50]
    assert falls(kept, now) == []


def test_a_fall_within_the_noise_is_not_named() -> None:
    kept = run([{P50: 40.0}, {P50: 50.0}, {P50: 60.0}])
    assert falls(run([{P50: 58.0}] * 3), kept) == []
    assert [fall.row.figure.key for fall in falls(run([{P50: 62.0}] * 3), kept)] == [P50]


def test_what_drifts_under_both_hides_no_fall() -> None:
    """Both took twice as long in some rounds; ours by theirs was the same in each, and has fallen by a quarter."""
    theirs = [{MB_S: 1000.0}, {MB_S: 2000.0}, {MB_S: 1500.0}]
    kept = run([{MB_S: 800.0}, {MB_S: 1600.0}, {MB_S: 1200.0}], theirs)
    now = run([{MB_S: 600.0}, {MB_S: 1200.0}, {MB_S: 900.0}], theirs, commit="bbb")
    assert [fall.row.figure.key for fall in falls(now, kept)] == [MB_S]
    assert falls(kept, now) == []


def named(*figures: float, key: str = P50) -> list[str]:
    """What is said of the last of these, each the figure of a run of five rounds without noise of their own."""
    *kept, now = (run([{key: figure}] * 5) for figure in figures)
    return ["slid" if fall.over else "fell" for fall in falls(now, *kept)]


def test_a_row_that_loses_a_little_in_each_run_is_named() -> None:
    """4 % a run is below what counts since the last; three runs of it below the median of five is not."""
    slide = [100 * 0.96**runs for runs in range(6)]
    assert named(*slide, key=MB_S) == ["slid"]
    assert named(*(1e4 / figure for figure in slide)) == ["slid"]
    assert named(*(100 * 0.99**runs for runs in range(6)), key=MB_S) == []


def test_what_a_row_moves_by_from_run_to_run_is_noise() -> None:
    """However steady its own rounds were."""
    restless = (100.0, 70.0, 130.0, 95.0, 125.0)
    assert named(*restless, 100.0, key=MB_S) == []
    assert named(*(1e4 / figure for figure in restless), 100.0) == []


def test_what_is_worse_than_in_all_runs_fell_however_much_it_moved_before() -> None:
    wild = (100.0, 900.0, 90.0, 1000.0, 100.0)
    assert named(*wild, 92.0, key=MB_S) == []
    assert named(*wild, 70.0, key=MB_S) == ["fell"]
    assert named(*(1e4 / figure for figure in wild), 1e4 / 70) == ["fell"]


def test_a_row_that_never_moved_is_named_for_little() -> None:
    steady = (100.0, 102.0, 101.0, 100.0, 101.0)
    assert named(*steady, 113.0) == ["fell"]
    assert named(*steady, 104.0) == []


def test_what_was_gained_in_one_run_and_is_lost_again_is_named() -> None:
    """A step that lasts is no noise: else a row would be unguarded for as long as its gain is news."""
    assert named(100.0, 100.0, 100.0, 200.0, 200.0, 100.0, key=MB_S) == ["fell"]


def test_a_fall_that_stays_is_named_until_it_is_what_the_row_mostly_was() -> None:
    assert named(100.0, 100.0, 100.0, 100.0, 70.0, 70.0, key=MB_S) == ["slid"]
    assert named(100.0, 100.0, 70.0, 70.0, 70.0, 70.0, key=MB_S) == []


def test_of_what_was_before_the_last_five_runs_nothing_is_known() -> None:
    assert named(*(50.0, 500.0) * 3, *[100.0] * 5, 80.0, key=MB_S) == ["fell"]


def test_fewer_than_four_kept_figures_say_nothing_of_what_a_row_moves_by() -> None:
    """Of three the median step is the mean of two: all that one of them gained could be lost again."""
    assert named(100.0, 70.0, 100.0, 80.0, key=MB_S) == ["fell"]
    assert named(100.0, 70.0, 100.0, 70.0, 80.0, key=MB_S) == []
    assert named(100.0, 100.0, 200.0, 100.0, key=MB_S) == ["fell"]
    lacking = [run([{P50: 50.0}])] * 3
    kept = [run([{MB_S: figure}] * 5) for figure in (100.0, 70.0, 100.0)]
    assert len(falls(run([{MB_S: 80.0}] * 5), *lacking, *kept)) == 1


def test_of_a_ratio_it_is_the_ratio_that_moves() -> None:
    """Ours and the mock's were half as fast in each other run; beside it ours lost a quarter."""

    def taken(ours: float, mock: float) -> Run:
        return run([{MB_S: ours}] * 3, [{MB_S: mock}] * 3)

    kept = [taken(900.0, 1000.0), taken(450.0, 500.0)] * 2
    (fall,) = falls(taken(675.0, 1000.0), *kept)
    assert (fall.beside, fall.before, fall.now, fall.over) == ("mock", 0.9, 0.675, 0)


def test_the_page_says_over_how_many_runs_it_looked_back() -> None:
    def made(figure: float, commit: str) -> Run:
        return run([{MB_S: figure}] * 5, commit=commit)

    kept = [made(100 * 0.96**runs, f"c{runs}") for runs in range(7)]
    slid = page(made(100 * 0.96**7, "now"), *kept)
    assert (
        "1 row [slid](#slid-over-the-last-5-kept-runs): worse than the median of the last 5 kept runs."
        in slid
    )
    assert "None of 1 rows fell since 2026-01-01-c6 by more than the noise" in slid
    assert "## Slid over the last 5 kept runs\n" in slid
    assert "- in, 1 KiB (throughput_1k.in_mb_s): 84.9 → 75.1 MB/s, 12% worse" in slid
    assert "the changes of a row over the last 5 kept runs" in page(made(20.0, "now"), *kept)
    assert "kept runs" not in page(made(20.0, "now"), *kept[:2])


def test_what_one_process_does_not_do_is_not_compared_with_it() -> None:
    switches = "requests_64.switches_per_request"
    (row,) = rows(run([{switches: 0.3}], [{switches: 0.003}]))
    assert row.ratios == {}


def test_the_page_tells_what_each_case_took() -> None:
    took = {f"latency.whole_{what}": 2.5 for what in ("cpu_s", "switches", "written_mb", "pss_mb")}
    text = page(run([{P50: 50.0} | took, {P50: 50.0}], [{P50: 50.0}]))
    assert "| latency | 2.5 |  | 2.5 |  | 2.5 |  | 2.5 |  |" in text
    assert "What each case took" not in page(run([{P50: 50.0}]))


def test_the_page_says_by_which_command_it_is_made_again() -> None:
    made = replace(run([{P50: 50.0}]), command="python -m benchmarks run --also failover_1")
    assert "| command | `python -m benchmarks run --also failover_1` |" in page(made)
    assert "| command |" not in page(run([{P50: 50.0}]))


def test_a_row_of_one_round_is_as_noisy_as_others_of_its_unit() -> None:
    """What was taken once has no spread of its own: it counts as if it varied as latencies do in the same run."""
    once, unlike = "latency_client.p50_us", "idle.pss_mb"
    spread: list[dict[str, float]] = [{P50: 80.0, once: 100.0, unlike: 100.0}, {P50: 120.0}]
    kept = run(spread, commit="aaa")

    def named(value: float, key: str) -> list[str]:
        return [fall.row.figure.key for fall in falls(run([spread[0] | {key: value}, spread[1]]), kept)]

    assert named(115.0, once) == []
    assert named(125.0, once) == [once]
    # Nothing of its unit has a spread: what is typical of the run counts.
    assert named(115.0, unlike) == []
    assert named(125.0, unlike) == [unlike]


def test_where_nothing_was_taken_twice_less_than_a_quarter_is_noise() -> None:
    kept = run([{P50: 100.0}])
    assert falls(run([{P50: 120.0}]), kept) == []
    assert [fall.row.figure.key for fall in falls(run([{P50: 130.0}]), kept)] == [P50]


def test_a_good_minute_of_the_other_is_no_fall_of_ours_where_there_were_few_rounds() -> None:
    ours = {MB_S: 900.0}
    kept = run([ours], [{MB_S: 1000.0}])
    assert falls(run([ours], [{MB_S: 3000.0}]), kept) == []
    assert len(falls(run([ours] * 3, [{MB_S: 3000.0}] * 3), run([ours] * 3, [{MB_S: 1000.0}] * 3))) == 1


def test_what_the_machine_does_by_itself_is_no_fall() -> None:
    ceiling = "throughput_1k.ceiling_mb_s"
    kept, now = run([{ceiling: 5000.0, P50: 50.0}]), run([{ceiling: 500.0, P50: 50.0}])
    assert falls(now, kept) == []
    assert "None of 1 rows fell" in page(now, kept)


def test_each_point_of_a_growth_is_guarded() -> None:
    few, many = "scale_partitions.pss_mb@1", "scale_partitions.pss_mb@10000"
    rate = "scale_partitions.requests_s@10000"
    kept = run([{few: 80.0, many: 190.0, rate: 70_000.0}])
    now = replace(run([{few: 82.0, many: 300.0, rate: 30_000.0}], commit="bbb"), kind="scaling")
    assert {fall.row.figure.key for fall in falls(now, kept)} == {many, rate}
    assert "partitions of a broker, 10,000: memory (PSS)" in page(now, kept)


def test_a_run_that_shares_no_row_with_the_last_one_says_so() -> None:
    assert "No row could be compared" in page(run([{P50: 50.0}]), run([{MB_S: 1.0}]))


def test_a_slower_machine_is_no_fall_where_the_mock_slowed_as_much() -> None:
    kept = run([{MB_S: 900.0}], [{MB_S: 1000.0}])
    assert falls(run([{MB_S: 450.0}], [{MB_S: 500.0}]), kept) == []
    assert falls(run([{MB_S: 450.0}], [{MB_S: 1000.0}]), kept)[0].beside == "mock"


def test_a_few_wild_rounds_of_the_mock_hide_no_fall_beside_kafka() -> None:
    def taken(ours: float, mock: tuple[float, ...]) -> Run:
        made = run([{P50: ours}] * 5, [{P50: each} for each in mock])
        return replace(made, taken=made.taken | {"kafka": [{P50: 100.0}] * 5})

    now, kept = taken(90.0, (10.0, 40.0, 90.0)), taken(50.0, (25.0, 25.0, 25.0))
    (fall,) = falls(now, kept)
    assert (fall.beside, fall.before, fall.now) == ("kafka", 0.5, 0.9)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = replace(run([{P50: 1.0}]), voids=[VoidCase(1, "mock", "idle", "busy")])
    assert load(save(written, tmp_path / written.name)) == written


def test_the_guard_compares_with_the_runs_of_a_machine_alike_that_were_kept_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    older = run([{P50: 1.0}], commit="old")
    newer = replace(run([{P50: 2.0}], commit="new"), date="2026-02-01")
    foreign = replace(
        run([{P50: 3.0}], commit="far"), date="2026-03-01", machine={"cores": 64, "processor": "P"}
    )
    for kept in (older, newer, foreign):
        save(kept, tmp_path / kept.name)
    now = replace(run([{P50: 9.0}], commit="now"), date="2026-04-01")
    assert kept_before(now) == [older, newer]
    assert kept_before(newer) == [older]


def test_what_awake_cores_gave_is_compared_with_cores_kept_awake_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another way is another figure: of a lone record, under any setting, and of each point of a growth."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    others = {"latency_asleep.p50_us": 2.0, MB_S: 3.0, "scale_slots.requests_s@1": 4.0, "gone.p50_us": 5.0}
    awakes = {P50: 1.0, "pinned/latency.p99_us": 1.0, "scale_slots.p50_us@1": 1.0}
    kept = run([{**awakes, **others}], commit="old")
    save(kept, tmp_path / kept.name)
    now = replace(run([{P50: 9.0}], commit="now"), date="2026-04-01")
    assert kept_before(now) == [kept]
    (looking,) = kept_before(replace(now, awake_by="looking"))
    assert looking.taken["appliance"] == [others]
    assert looking.name == kept.name


def test_a_figure_that_was_void_in_each_round_says_so_in_its_place() -> None:
    voids = [VoidCase(1, "mock", "latency", "busy")]
    text = page(replace(run([{P50: 50.0}], [{MB_S: 1.0}]), voids=voids))
    assert "| one record at a time: p50 | µs ↓ | 1 | 50 | void |" in text
    assert "| in, 1 KiB | MB/s ↑ | 1 |  | 1 |" in text


def test_the_page_tells_goals_voids_and_falls() -> None:
    kept = run([{P50: 50.0}], [{P50: 25.0}])
    now = replace(
        run([{P50: 70.0}], [{P50: 25.0}], commit="bbb"), voids=[VoidCase(1, "mock", "idle", "a | b")]
    )
    text = page(now, kept)
    assert "| one record at a time: p50 | 70 µs | ≤ 60 | **missed** |" in text
    assert "| 1 | mock | idle | a / b |" in text
    assert "40% worse" in text


def test_what_used_nothing_is_guarded_too() -> None:
    """A tenth of the bound is as good as nothing; the share of nothing is no number."""
    idle = "idle.cpu_percent"
    kept = run([{idle: 0.0, P50: 50.0}])
    assert falls(run([{idle: 0.02, P50: 50.0}]), kept) == []
    assert [fall.row.figure.key for fall in falls(run([{idle: 2.0, P50: 50.0}]), kept)] == [idle]


def test_rows_that_have_no_figure_any_more_are_named() -> None:
    kept, now = run([{P50: 50.0, MB_S: 900.0}]), run([{P50: 50.0}], commit="bbb")
    assert "Rows that 2026-01-01-aaa had and this run does not have: in, 1 KiB." in page(now, kept)
    assert "this run does not have" not in page(kept, now)


def test_a_goal_s_row_without_a_figure_is_shown_as_void_or_not_run() -> None:
    p99 = "latency.p99_us"
    made = run([{P50: 50.0}])
    assert [figure.key for _, figure in unshown(made)] == [p99]
    assert "| one record at a time: p99 | | ≤ 0.2× kafka | not in this run |" in page(made)
    void = replace(
        made, taken={"appliance": [{MB_S: 1.0}]}, voids=[VoidCase(1, "appliance", "latency", "busy")]
    )
    told = page(void)
    assert "| one record at a time: p99 | | ≤ 0.2× kafka | **void** |" in told
    assert "of their rows without a figure" in told


def test_bounds_that_other_rows_miss_are_counted_and_named() -> None:
    pinned = "pinned/requests_64.requests_s"
    made = run([{P50: 50.0, pinned: 30.0}], [{P50: 50.0, pinned: 100.0}])
    missed, carried = missed_elsewhere(made)
    assert ([(row.figure.key, bound) for row, bound in missed], carried) == ([(pinned, Goal(0.4, "mock"))], 1)
    told = page(made)
    assert "Other rows have 1 bounds; 1 are [missed](#missed-in-other-rows)" in told
    assert "0.3× mock (≥ 0.4× mock)" in told


def test_rows_behind_kafka_without_a_bound_are_named() -> None:
    rate, close = "commits_1.commits_s", "commits_50.commits_s"
    theirs = {rate: 100.0, close: 100.0}
    made = replace(
        run([{rate: 66.0, close: 97.0}]),
        taken={"appliance": [{rate: 66.0, close: 97.0}], "kafka": [theirs]},
        versions={"appliance": "1", "kafka": "4"},
    )
    assert [row.figure.key for row in behind(made, "kafka")] == [rate]
    assert "### Behind Kafka, without a bound" in page(made)
