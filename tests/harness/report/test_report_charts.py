import logging
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.evidence.results import Measure, Point, Series
from fixtures.report import charts, numbers, words
from fixtures.report.matrix import matrix
from tests.harness.report.values import result, small

ROOT = Path(__file__).parents[3]
bounds = st.none() | st.floats()
points = st.lists(
    st.builds(Point, x=st.floats() | st.text(max_size=9), y=st.floats(), low=bounds, high=bounds), max_size=8
).map(tuple)


def series(kind="bars", ys=(1.0, 2.0, 3.0), **more):
    found = tuple(Point(x=float(x), y=y) for x, y in enumerate(ys))
    return Series(**{"title": "T", "x": "x of it", "y": "y of it", "kind": kind, "points": found, **more})


def plots(*found):
    (told,) = numbers.numbers(matrix(small(result(series=found))))
    return told.plots


def drawn(one):
    return charts.svg(plots(one)[0])


class TestDrawing:
    @pytest.mark.parametrize("kind", ["bars", "line", "histogram"])
    def test_a_plot_follows_the_page_and_says_what_it_shows(self, kind):
        text = drawn(series(kind, expected=series().points))
        root = ET.fromstring(text)
        words_in_it = {element.text for element in root.iter() if element.text and element.text.strip()}
        assert {"T", "expected", "y of it"} <= words_in_it
        assert root.get("role") == "img"
        assert all(
            root.find(f".//*[@id='{name}']") is not None for name in root.get("aria-labelledby").split()
        )
        assert "var(--measured)" in text
        assert "var(--expected)" in text
        for foreign in (
            "DOCTYPE",
            "<style",
            "font-family",
            "metadata",
            "#0000",
            "#ffffff",
            "http://matplotlib",
        ):
            assert foreign not in text

    def test_a_plot_is_the_same_every_time_and_shares_no_id_with_another(self):
        one, other = plots(series("line"), series("histogram"))
        assert charts.svg(one) == charts.svg(one)
        roots = [ET.fromstring(charts.svg(plot)) for plot in (one, other)]
        ids = [{element.get("id") for element in root.iter()} - {None} for root in roots]
        assert ids[0].isdisjoint(ids[1])

    @settings(max_examples=25, deadline=None)
    @given(points, points, st.sampled_from(["bars", "line", "histogram"]), st.text(max_size=30))
    def test_any_numbers_and_texts_are_drawn_or_left_out(self, some, more, kind, text):
        one = Series(title=text, x=text, y=text, kind=kind, points=some, expected=more)
        assert drawn(one).startswith("<svg" if numbers.finite(some) else "")
        assert numbers.describe(one).endswith(".")

    def test_many_bars_have_few_labels(self):
        root = ET.fromstring(drawn(series(ys=range(500))))
        assert len([e for e in root.iter("{http://www.w3.org/2000/svg}text") if e.text]) < 30

    def test_plots_that_are_compared_have_one_scale(self):
        found = [result(item=str(top), series=(series(ys=(1.0, top)),)) for top in (2.0, 40.0)]
        (told,) = numbers.numbers(matrix(small(*found)))
        assert [plot.span for plot in told.plots] == [(1.0, 40.0)] * 2


class TestWords:
    def test_a_histogram_is_described_by_median_and_p99(self):
        text = numbers.describe(series("histogram", ys=[*range(1, 101)]))
        assert text == "100 values from 1 to 100, median 50.5, p99 99."

    def test_what_cannot_be_drawn_is_counted(self):
        assert (
            numbers.describe(series(ys=(1.0, float("nan")))) == "1 bar from 1 to 1; 1 more cannot be drawn."
        )
        assert drawn(series(ys=(float("inf"),))) == ""

    @pytest.mark.parametrize(
        ("value", "text", "aligned"),
        [
            (4096, "4\u202f096", "4\u202f096"),
            (12.5, "12.5", "12.50"),
            (float("nan"), "nan", "nan"),
            (1e300, "1e+300", "1e+300"),
        ],
    )
    def test_of_numbers(self, value, text, aligned):
        assert (words.number(value), words.aligned(value)) == (text, aligned)

    def test_an_exact_count_has_no_interval(self):
        assert numbers.interval(Measure(name="n", value=3)) == ""
        assert numbers.interval(Measure(name="n", value=3, low=2.5, high=3.5)) == "2.500 to 3.500"

    @given(st.floats())
    def test_any_time_has_words(self, value):
        assert words.when(value)
        assert words.duration(value)

    def test_a_start_that_failed_took_no_time(self):
        assert words.duration(None) == "never"


def test_matplotlib_is_not_imported_without_a_series_and_needs_no_home():
    script = """
import sys
from tests.harness.report.test_report_charts import drawn, series
from fixtures.report import render
from tests.harness.report.values import result, small
render.html(small(result()), None)
assert "matplotlib" not in sys.modules
assert drawn(series()).startswith("<svg")
assert "matplotlib.pyplot" not in sys.modules
"""
    theirs = {"MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"}
    env = {name: value for name, value in os.environ.items() if name not in theirs}
    env |= {"HOME": "/proc/nobody", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_drawing_says_nothing(caplog):
    with caplog.at_level(logging.DEBUG):
        drawn(series(title="日本 $x^2$"))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
