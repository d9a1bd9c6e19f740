"""Which exact model computed some values."""

import numpy as np
import pytest

from fixtures.judge import nearest

MODELS = {"one": np.zeros(4), "two": np.array([0.0, 0.0, 0.4, 0.4])}


def test_distances_are_root_mean_squares_and_the_nearest_comes_first():
    found = nearest.distances([0.0, 0.0, 0.4, 0.2], MODELS)
    assert list(found) == ["two", "one"]
    assert found == pytest.approx({"two": 0.1, "one": np.sqrt(0.05)})


def test_values_of_the_expected_model_are_sound():
    assert nearest.problems([0.0, 0.1, 0.0, 0.0], MODELS, ["one"], 0.06) == []


def test_values_of_another_model_are_told():
    (problem,) = nearest.problems([0.0, 0.0, 0.4, 0.3], MODELS, ["one"], 9.0)
    assert problem.what.startswith("are nearest to two, expected one: two 0.0500, one 0.2500")


@pytest.mark.parametrize("value", [0.2, np.nan])
def test_values_of_no_model_are_told(value):
    (problem,) = nearest.problems([value, 0.0, 0.0, 0.0], MODELS, ["one"], 0.06)
    assert "from one, expected at most 0.0600" in problem.what


def test_values_of_another_shape_are_an_error():
    with pytest.raises(ValueError, match="one has the shape"):
        nearest.distances([0.0], MODELS)
