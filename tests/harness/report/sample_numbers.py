"""Realistic numbers: frequencies beside those of the oracle, latencies, throughput."""

from __future__ import annotations

from fixtures.evidence.results import Measure, Point, Series
from tests.harness.report.values import result

SHARES = {"k17": 0.42, "k3": 0.27, "k240": 0.14, "k8": 0.09, "k91": 0.05, "the rest": 0.03}


def results(engine, version, dice):
    """Yield the tests of accuracy and of performance."""
    where = {"engine": engine, "version": version}
    for place in range(8):
        test = f"accuracy/test_logprobs.py::test_a_texts_logprobs_are_exact_{place}"
        yield result(test, server=f"{engine}:chain", seconds=1.5, **where)
    value = 12.5 + dice.gauss(0, 0.004)
    perplexity = measure("Perplexity of the text", value, 0.01, "", 4096, "prompt log-probabilities")
    test = "accuracy/test_logprobs.py::test_samples_have_the_models_frequencies"
    yield result(test, server=f"{engine}:chain", series=(frequencies(dice),), measures=(perplexity,), **where)

    crowd = [1, 2, 4, 8, 16, 32]
    rates = [38 * n / (1 + n / 14) * dice.uniform(0.95, 1.05) for n in crowd]
    waits = [dice.lognormvariate(3.2, 0.35) for _ in range(400)]
    measures = (
        measure("First token, median", sorted(waits)[200], 1.6, "ms", 400, "client clock"),
        measure("Throughput, 32 at once", rates[-1], 9, "tokens/s", 5, "client clock"),
        Measure(name="Drafts accepted", value=1203, samples=2406, origin="counter spec_decode_num_accepted"),
    )
    test = "perf/test_latency.py::test_first_tokens_come_in_time"
    series = (latencies(waits), throughput(crowd, rates))
    yield result(test, server=f"{engine}:fuzz", seconds=88.1, measures=measures, series=series, **where)


def measure(name, value, margin, unit, samples, origin):
    """Return a measure with an interval of that margin."""
    low, high = value - margin, value + margin
    return Measure(name=name, value=value, unit=unit, low=low, high=high, samples=samples, origin=origin)


def frequencies(dice):
    """Return bars with error bars and what the oracle expects."""
    seen = {word: share + dice.gauss(0, 0.01) for word, share in SHARES.items()}
    return Series(
        title="Frequencies of sampled tokens",
        x="token",
        y="share of samples",
        kind="bars",
        points=tuple(Point(x=word, y=y, low=y - 0.02, high=y + 0.02) for word, y in seen.items()),
        expected=tuple(Point(x=word, y=share) for word, share in SHARES.items()),
    )


def latencies(waits):
    """Return a histogram."""
    points = tuple(Point(x=place, y=wait) for place, wait in enumerate(waits))
    return Series(title="Time to the first token", x="", y="milliseconds", kind="histogram", points=points)


def throughput(crowd, rates):
    """Return a line with a band."""
    return Series(
        title="Throughput by requests at once",
        x="requests at once",
        y="tokens per second",
        kind="line",
        points=tuple(Point(x=n, y=y, low=y * 0.93, high=y * 1.07) for n, y in zip(crowd, rates, strict=True)),
    )
