"""What is generated from the kept runs is up to date, and honest about what is missing."""

from __future__ import annotations

import pytest

from appliance.config import load_settings
from benchmarks import host
from benchmarks.cases import CASES
from benchmarks.figures import FIGURES
from benchmarks.goals import ELSEWHERE, TARGETS, behind, remarks, remarks_on_cases, verdicts
from benchmarks.guard import falls, outcome
from benchmarks.page import page
from benchmarks.places import RESULTS
from benchmarks.publish import KEYS, SCALING, between, block, growing, log_pages, newest, texts
from benchmarks.results import kept_before
from benchmarks.spark.verdicts import newest_page, read_run
from benchmarks.spark.verdicts import verdicts as spark_verdicts
from tests.benchmarks.test_results import run


def test_what_stands_in_readme_and_docs_is_what_the_newest_kept_runs_say() -> None:
    for path, text in texts(newest(), newest("scaling")).items():
        assert path.read_text() == text, f"{path.name} is stale: make bench-publish"


def test_the_page_of_the_newest_kept_run_is_what_its_figures_say() -> None:
    for kept in filter(None, (newest(), newest("scaling"))):
        path = RESULTS / f"{kept.name}.md"
        assert path.read_text() == page(kept, *kept_before(kept)), f"{path.name} is stale: make bench-publish"


def test_each_goal_that_the_newest_kept_run_missed_has_a_reason_and_a_next_step() -> None:
    kept = newest()
    assert kept is not None
    missed = {verdict.target.name for verdict in verdicts(kept) if verdict.reached is False}
    unsaid = [
        name for name in missed if not (name in remarks() and remarks()[name].why and remarks()[name].next)
    ]
    assert not unsaid, "say why and what comes next in benchmarks/goals.toml"


def test_each_case_that_the_newest_kept_run_has_behind_kafka_has_a_reason_and_a_next_step() -> None:
    kept = newest()
    assert kept is not None
    cases = {row.figure.case.rpartition("/")[2] for row in behind(kept, "kafka")}
    said = {name for name, remark in remarks_on_cases().items() if remark.why and remark.next}
    assert cases <= said, "say why and what comes next under [behind] in benchmarks/goals.toml"


def test_goals_remarks_and_rows_name_each_other() -> None:
    with_goals = {figure.key for figure in FIGURES if figure.goals}
    assert {key for target in TARGETS for key in target.keys} <= with_goals
    assert set(remarks()) <= {ELSEWHERE, *(target.name for target in TARGETS)}
    assert all(target.keys or target.page for target in TARGETS)
    assert set(remarks_on_cases()) <= set(CASES)


def test_the_readme_has_a_column_of_the_pure_build_when_the_run_measured_it() -> None:
    measured = run([{"latency.p50_us": 70.0}])
    measured.taken["pure"] = [{"latency.p50_us": 101.0}]
    text = block(measured)
    heading, _, row = (line.split("|") for line in text.splitlines() if line.startswith("|"))
    place = heading.index(" pure ")
    assert "101" in row[place]
    assert len(row) == len(heading)
    assert "| pure |" not in block(run([{"latency.p50_us": 70.0}]))


def test_the_readme_marks_a_missing_rival_and_a_missed_goal() -> None:
    text = block(run([{"latency.p50_us": 70.0}]))
    verdict = "≤ 60: **missed**; ≤ 0.2× kafka: no ratio"
    assert f"| one record at a time: p50 ↓ | 70 µs | missing | missing |  | {verdict} |" in text
    assert "goals of the Spark source ([all figures](../benchmarks/results/spark/" in text


def test_a_page_tells_of_each_goal_whether_it_was_reached_missed_or_waits() -> None:
    text = page(run([{"latency.p50_us": 70.0, "idle.pss_mb": 80.0}]))
    assert "| one record at a time: p50 | 70 µs | ≤ 60 | **missed** |" in text
    assert "| idle: memory (PSS) | 80 MB | ≤ 150 | reached |" in text
    assert all(f"| {target.what}: {target.goal} |" in text for target in TARGETS)
    assert "### Missed: why, and what comes next" in text
    assert remarks()["latency"].next in text


def test_the_page_shows_sparks_goals_from_its_own_newest_page_with_the_reason_of_a_missed_one() -> None:
    kept = newest_page()
    assert kept is not None
    text = page(run([{"latency.p50_us": 70.0}]))
    of_spark = [each for each in spark_verdicts(read_run(kept)) if "spark-sql-kafka" in each.what]
    assert len(of_spark) == 2
    for each in of_spark:
        word = "reached" if each.reached else "**missed**"
        assert f"| [{each.what}](spark/{kept.name}) | {each.value} | {each.bound} | {word} |" in text
    assert (remarks()["spark"].why in text) == (not all(each.reached for each in of_spark))


def test_a_text_without_marks_is_refused_and_the_rest_of_a_page_stays() -> None:
    text = "before\n<!-- a: begin -->\nold\n<!-- a: end -->\nafter\n"
    assert between(text, "a", "new") == "before\n<!-- a: begin -->\nnew\n<!-- a: end -->\nafter\n"
    with pytest.raises(ValueError, match="no marks"):
        between(text, "b", "new")


def test_the_arithmetic_for_a_big_host_shows_what_it_multiplies() -> None:
    figures = {
        "requests_64.cpu_us_per_request netproc 0": 6.0,
        "requests_64.cpu_us_per_request netproc 1": 4.0,
        "requests_64.cpu_us_per_request ioproc 0.0": 8.0,
        "throughput_1k.in_cpu_s_per_gb": 0.8,
    }
    text = host.arithmetic(run([figures]))
    assert "20 / 10.0 µs, and 12 workers handle 12 / 8.0 µs | 1.5 million/s | workers |" in text
    assert "0.80 CPU s/GB × 12.5 GB/s of a 100 Gbit/s card = 10 of 32 cores | 12.5 GB/s |" in text
    assert "clean start" not in text
    assert "kill -9" not in text


def test_bytes_in_are_bounded_by_what_workers_carry() -> None:
    figures = {"throughput_1k.in_cpu_s_per_gb": 1.0, "throughput_1k.in_worker_cpu_s_per_gb": 1.5}
    text = host.arithmetic(run([{**figures, "pinned/throughput_1k.in_mb_s": 600.0}]))
    assert "12 of 32 cores. A worker needs 1.50 CPU s/GB of this" in text
    assert "12 / 1.50 = 8.0 GB/s | 8.0 GB/s | the workers' cores, then" in text
    assert "A worker with its own core needs 1.50 CPU s/GB | 600 to 667 MB/s |" in text


def test_a_process_more_of_a_big_host_costs_what_one_of_its_kind_was_measured_to_cost() -> None:
    usual = {
        "idle.pss_mb": 80.0,
        "idle.pss_mb netproc 0": 8.0,
        "idle.pss_mb netproc 1": 11.0,
        "idle.pss_mb ioproc 0.0": 12.0,
        "start_1000.kb_per_partition": 10.0,
        "idle_connections.kb_per_connection": 2.0,
    }
    of_workers = {"scale_workers.pss_mb@1": 80.0, "scale_workers.pss_mb@8": 129.0}
    of_slots = {"scale_slots.pss_mb@1": 80.0, "scale_slots.pss_mb@3": 110.0}
    growth = run([{**of_workers, **of_slots}])
    text = host.arithmetic(run([usual]), growth, host=host.Host(slots=3, workers=4))
    more = "18 more network processes × 11.0 MB + 2 more slots with a worker and a replica process each × 15.0 MB"
    assert f"| 80 MB + {more} + 9 more workers × 7.0 MB + 10,000 partitions × 10.0 KB" in text
    assert "| 0.5 GB |" in text
    # Where one of the prices is not known there is no sum.
    assert "memory of the broker" not in host.arithmetic(run([usual]), run([of_workers]))


def test_the_arithmetic_says_of_which_build_it_is_and_what_a_copy_is_for() -> None:
    text = host.arithmetic(run([{"throughput_1k.out_cpu_s_per_gb": 0.5}]))
    assert text.startswith(
        "Source: the [run of 2026-01-01](../benchmarks/results/2026-01-01-aaa.md), appliance 1."
    )
    assert "0.50 CPU s/GB × 12.5 GB/s of a 100 Gbit/s card = 6 of 32 cores. This price was measured" in text
    assert "for clients on other hosts costs no more than the copy (**not measured**" in text


def test_start_and_recovery_of_a_big_host_come_from_what_was_measured_about_them() -> None:
    growth = run([{"scale_partitions.start_ms@1": 700.0, "scale_partitions.start_ms@10000": 2500.0}])
    log_page = "recovery, warm  0.42  2570\nrecovery, cold  15.11  710\nrecovery, warm  4.38     2450\n"
    text = host.arithmetic(run([{}]), growth, log_page)
    assert "| clean start, 10,000 partitions | as measured with one worker | 2.5 s at most |" in text
    assert "one worker reads 2.45 GB/s (`make bench-log`, warm). 12 workers read 537 GB in 18 s." in text
    assert "| 22 to 298 s |" in text


def test_recovery_of_a_big_host_spans_what_all_kept_pages_of_the_log_say() -> None:
    slow, fast = (
        "pure build; x\nrecovery, warm  0.4  9000\nrecovery, warm  8.8  " + mb_s for mb_s in ("1000", "4000")
    )
    text = host.arithmetic(run([{}]), None, fast + "\n", slow + "\n")
    said = "one worker reads 1.00 to 4.00 GB/s (`make bench-log`, warm, pure build, 2 kept pages)"
    assert (
        f"{said}. 12 workers read 537 GB in 11 to 45 s. 12 disks deliver them in 22 s at 2 GB/s each" in text
    )


def test_every_kept_page_of_the_log_tells_how_fast_a_worker_recovers() -> None:
    assert log_pages()
    assert all(host.RECOVERY.findall(page) and host.BUILD.findall(page) for page in log_pages())


def test_what_is_said_of_growth_names_its_run_its_build_and_what_fell() -> None:
    kept = newest("scaling")
    assert kept is not None
    text = growing(kept)
    assert text.startswith(f"Source: the [run of {kept.date}](../benchmarks/results/{kept.name}.md)")
    assert kept.versions["appliance"] in text
    before = kept_before(kept)
    assert before
    found = falls(kept, *before)
    assert ("[fell](" in text or "[slid](" in text) == bool(found)
    assert (not found) or outcome(found, before, f"../benchmarks/results/{kept.name}.md") in text


def test_each_goal_with_figures_stands_in_the_readme() -> None:
    without = [target.name for target in TARGETS if target.keys and not set(target.keys) & set(KEYS)]
    assert not without


def test_the_big_host_is_told_options_that_the_program_takes() -> None:
    load_settings(overrides=host.options())
    text = SCALING.read_text()
    assert all(f"`{name} = {value}`" in text for name, value in host.options().items())
    one_slot = host.options(host.Host(slots=1, workers=12))
    load_settings(overrides=one_slot)
    assert f"`slots = {one_slot['slots']}`, `io.workers = {one_slot['io.workers']}`" in text
