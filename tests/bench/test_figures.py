"""What the benchmarks conclude from what they measured."""

from __future__ import annotations

import pytest

from tests.bench.figures import Figure, Result, at_least, at_most, number, percentile


def test_a_figure_is_the_median_of_its_runs() -> None:
    runs = [[Figure("rows/s", value, at_least(10)), Figure("ms", 2 * value)] for value in (30.0, 9.0, 11.0)]
    result = Result(workload="X", what="", runs=runs, load_averages=[])
    assert [(figure.name, figure.value) for figure in result.medians()] == [("rows/s", 11.0), ("ms", 22.0)]


@pytest.mark.parametrize(("value", "fast", "small"), [(9.9, False, True), (10.0, True, True), (10.1, True, False)])
def test_the_value_to_reach_counts_as_reached(value: float, fast: bool, small: bool) -> None:
    assert at_least(10).reached(value) is fast
    assert at_most(10).reached(value) is small


def test_the_99th_percentile_of_a_hundred_is_not_its_worst() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile([7.0], 0.99) == 7


@pytest.mark.parametrize(("value", "text"), [(2345.6, "2,346"), (3.14159, "3.14"), (0.05678, "0.057"), (0.0, "0")])
def test_numbers_show_the_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text
