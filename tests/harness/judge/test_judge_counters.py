import math

import pytest
from hypothesis import given, settings

from fixtures.judge import counters
from fixtures.judge.counters import delta, parse, problems
from tests.harness.judge.strategies import scrapes

LAW = settings(max_examples=60, deadline=None)
TEXT = """\
# HELP vllm:prompt_tokens_total Prompt tokens.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model="m"} 10
vllm:prompt_tokens_total{engine="1",model="m"} 5
# TYPE vllm:running gauge
vllm:running{engine="0"} 2
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{cache_dtype="fp8",engine="0"} 1
# TYPE ttft histogram
ttft_bucket{le="0.1"} 1
ttft_bucket{le="+Inf"} 3
ttft_sum 0.9
ttft_count 3
"""
SAMPLES = parse(TEXT)


class TestLookup:
    def test_a_value_is_the_sum_over_matching_series(self):
        assert SAMPLES.value("vllm:prompt_tokens_total") == 15
        assert SAMPLES.value("vllm:prompt_tokens_total", engine="1") == 5
        assert SAMPLES.value("vllm:prompt_tokens_total", engine="1", model="m") == 5
        assert SAMPLES.value("ttft_count") == 3

    def test_a_label_is_read(self):
        assert SAMPLES.label("vllm:cache_config_info", "cache_dtype") == "fp8"

    @pytest.mark.parametrize(
        ("look", "sentence"),
        [
            (lambda: SAMPLES.value("vllm:promt_tokens_total"), "near it are vllm:prompt_tokens_total"),
            (lambda: SAMPLES.value("zzzz"), "none of 6 names is near it"),
            (lambda: SAMPLES.value("vllm:running", engine="7"), 'has {engine="7"}; there are {engine="0"}'),
            (lambda: SAMPLES.label("vllm:running", "dtype"), "no label 'dtype'; it has engine"),
            (lambda: SAMPLES.label("ttft_count", "le"), "no label 'le'; it has none"),
            (lambda: SAMPLES.label("vllm:prompt_tokens_total", "engine"), "several values of 'engine': 0, 1"),
        ],
        ids=["name", "far", "labels", "label", "bare", "several"],
    )
    def test_a_lookup_that_fails_says_what_there_is(self, look, sentence):
        with pytest.raises(LookupError) as failure:
            look()
        assert sentence in str(failure.value)

    def test_text_of_another_format_is_refused(self):
        with pytest.raises(ValueError, match=r"."):
            parse("{not metrics")

    def test_a_series_given_twice_is_refused(self):
        with pytest.raises(ValueError, match=r'a\{x="1"\} is given twice'):
            parse('a{x="1"} 1\na{x="1"} 2\n')


class TestDelta:
    @given(first=scrapes(), second=scrapes(), third=scrapes())
    @LAW
    def test_deltas_of_adjoining_stretches_add_up(self, first, second, third):
        a, b, c = map(parse, (first, second, third))
        one, two, both = delta(a, b), delta(b, c), delta(a, c)
        for series, value in both.values.items():
            assert value == one.values.get(series, 0) + two.values.get(series, 0)

    @given(text=scrapes())
    @LAW
    def test_nothing_happens_between_equal_scrapes(self, text):
        assert set(delta(parse(text), parse(text)).values.values()) <= {0.0}

    @given(first=scrapes(), second=scrapes())
    @LAW
    def test_counters_never_fall(self, first, second):
        a, b = parse(first), parse(second)
        fell = {name for (name, _), value in delta(a, b).values.items() if value < 0 and name != "load"}
        assert {one.where.partition("{")[0] for one in problems(delta(a, b))} == fell

    def test_a_new_series_counts_from_zero(self):
        assert delta(parse(""), SAMPLES).value("ttft_count") == 3
        assert problems(delta(parse(""), SAMPLES)) == []

    @pytest.mark.parametrize(
        "line",
        ['vllm:prompt_tokens_total{engine="1",model="m"}', 'ttft_bucket{le="0.1"}', "ttft_sum", "ttft_count"],
    )
    @pytest.mark.parametrize("value", ["0", "NaN"])
    def test_a_fallen_or_vanished_series_and_nan_are_noticed(self, line, value):
        old = next(one for one in TEXT.splitlines() if one.startswith(line))
        assert len(problems(delta(SAMPLES, parse(TEXT.replace(old, f"{line} {value}"))))) == 1
        assert len(problems(delta(SAMPLES, parse(TEXT.replace(old + "\n", ""))))) == 1

    @pytest.mark.parametrize("value", ["0", "NaN"])
    def test_a_gauge_may_fall_and_have_no_value(self, value):
        later = TEXT.replace('vllm:running{engine="0"} 2', f'vllm:running{{engine="0"}} {value}')
        assert later != TEXT
        assert problems(delta(SAMPLES, parse(later))) == []

    def test_equal_infinities_differ_by_nothing(self):
        endless = counters.Samples({("g", frozenset()): math.inf})
        assert problems(delta(endless, endless)) == []
