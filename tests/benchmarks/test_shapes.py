"""The shape of a growth is named for what it is, noise or no noise."""

from __future__ import annotations

from benchmarks.scaling_page import tables
from benchmarks.shapes import shape
from tests.benchmarks.test_results import run

COUNTS = (1.0, 10.0, 100.0, 1000.0, 10_000.0)


def test_what_moves_less_than_the_noise_is_constant() -> None:
    assert shape([(n, 80 + n % 7) for n in COUNTS]).name == "constant"


def test_a_line_on_a_base_is_linear_and_tells_the_price_of_each() -> None:
    found = shape([(n, 80 + 0.03 * n) for n in COUNTS])
    assert found.name == "linear"
    assert abs(found.each - 0.03) < 1e-4


def test_a_line_is_linear_however_near_its_points_lie() -> None:
    """Brokers of Kafka, 1 to 3: memory as it was measured."""
    found = shape([(1, 395), (2, 770), (3, 1142)])
    assert found.name == "linear"
    assert abs(found.each - 373.5) < 1


def test_a_square_is_worse_than_linear() -> None:
    assert shape([(n, 5 + n**2) for n in COUNTS]).name == "worse than linear, n^2.0"


def test_a_root_is_less_than_linear() -> None:
    assert shape([(n, 1 + n**0.5) for n in COUNTS]).name == "less than linear"


def test_a_rate_that_drops_decreases() -> None:
    assert shape([(1, 50_000), (10, 50_000), (100, 45_000), (1000, 20_000)]).name == "decreases"
    assert shape([(1, 50_000), (10, 50_000), (100, 45_000), (1000, 33_000)]).name == "decreases"
    assert shape([(1, 50_000), (10, 50_000), (100, 50_000), (1000, 20_000)]).name == "decreases at the end"


def test_what_goes_back_by_more_than_it_went_has_no_trend() -> None:
    """p50 by partitions, and a stream by slots, as they were measured."""
    assert shape([(1, 265), (10, 210), (100, 187), (1000, 275), (10_000, 186)]).name == "no trend"
    assert shape([(1, 1237), (2, 778), (3, 1349), (6, 1123), (12, 866)]).name == "no trend"
    assert shape([(1, 186), (10, 275), (100, 187), (1000, 210), (10_000, 265)]).name == "no trend"


def test_a_step_back_that_is_small_beside_the_growth_leaves_it_its_name() -> None:
    """Kafka's clean stop by partitions, and requests by partitions, as they were measured."""
    assert shape([(1, 825), (10, 623), (100, 727), (1000, 1843), (10_000, 6929)]).name == "less than linear"
    falling = [(1, 30_620), (10, 26_658), (100, 28_548), (1000, 16_106), (10_000, 22_394)]
    assert shape(falling).name == "decreases"


def test_what_rose_by_half_or_more_is_not_nearly_constant_however_flat_its_end() -> None:
    """A clean stop by MiB of log, and Kafka's brokers when idle, as they were measured."""
    assert shape([(64, 326), (256, 324), (1024, 877), (4096, 976)]).name == "less than linear"
    assert shape([(1, 5.89), (2, 13.2), (3, 12.6)]).name == "less than linear"


def test_what_rose_a_little_and_flattened_is_nearly_constant() -> None:
    assert shape([(64, 467), (256, 603), (1024, 629), (4096, 633)]).name == "nearly constant"


def test_one_point_between_does_not_make_a_row_fall_or_rise() -> None:
    assert shape([(1, 27_582), (2, 24_793), (4, 16_882), (8, 24_332)]).name == "no trend"
    assert shape([(1, 919), (2, 1349), (3, 1291), (6, 1231), (12, 1028)]).name == "no trend"
    assert shape([(1, 6.04), (10, 5.52), (100, 4.78), (1000, 3.98), (3000, 6.19)]).name == "no trend"


def test_figures_of_a_table_have_no_powers_of_ten() -> None:
    figures = {f"scale_slots.pss_mb@{n}": value for n, value in ((1, 395.4), (2, 770.0), (3, 1142.0))}
    (row,) = [line for line in tables(run([figures]), "r").splitlines() if line.startswith("| memory")]
    assert row == "| memory (PSS), MB | appliance | 395 | 770 | 1,142 | linear | 373 |"
