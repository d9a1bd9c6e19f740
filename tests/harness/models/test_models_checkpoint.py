from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace

import pytest

from fixtures.errors import HarnessError
from fixtures.models import RECIPES, build, checkpoint, open_oracle, perturb
from tests.harness.models.conftest import SMALL


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("name", sorted(RECIPES))
class TestBuild:
    def test_is_deterministic(self, name, tmp_path):
        one, other = build(SMALL[name], tmp_path / "a"), build(SMALL[name], tmp_path / "b")
        assert one.name == other.name
        assert contents(one) == contents(other)

    def test_tells_where_it_came_from(self, name, tmp_path):
        path = build(SMALL[name], tmp_path)
        story = json.loads((path / "oracle.json").read_text())
        assert story["recipe"]["name"] == name
        assert path.name == f"{name}-{story['digest']}"
        assert open_oracle(path).perturbed is None
        assert open_oracle(path).vocab_size == json.loads((path / "config.json").read_text())["vocab_size"]


class TestFolder:
    def test_is_built_once(self, tmp_path, monkeypatch):
        path = build("fuzz", tmp_path)
        monkeypatch.setattr("fixtures.models.recipes.FAMILIES", {})
        assert build("fuzz", tmp_path) == path

    def test_has_another_name_for_another_seed_or_source(self, tmp_path, monkeypatch):
        recipe = RECIPES["fuzz"]
        path = build(recipe, tmp_path)
        assert build(replace(recipe, seed=5), tmp_path) != path
        monkeypatch.setattr(checkpoint, "SOURCES", checkpoint.SOURCES[1:])
        assert build(recipe, tmp_path) != path

    def test_is_complete_or_absent(self, tmp_path, monkeypatch):
        def fail(*_, **__):
            raise OSError("No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save_file", fail)
            with pytest.raises(HarnessError, match="No space left"):
                build("fuzz", tmp_path)
        assert list(tmp_path.iterdir()) == []
        assert build("fuzz", tmp_path).is_dir()

    def test_survives_many_builders_at_once(self, tmp_path):
        with multiprocessing.get_context("spawn").Pool(4) as pool:
            paths = pool.starmap(build, [("fuzz", tmp_path)] * 8)
        assert len(set(paths)) == 1
        assert list(tmp_path.iterdir()) == paths[:1]
        assert contents(paths[0]) == contents(build("fuzz", tmp_path / "alone"))

    def test_of_an_unknown_recipe_is_refused_with_a_suggestion(self, tmp_path):
        with pytest.raises(HarnessError, match="did you mean 'lookup'"):
            build("lokup", tmp_path)
        with pytest.raises(HarnessError, match="there are chain, fine, fuzz, "):
            build("zzz", tmp_path)

    def test_that_is_no_checkpoint_is_refused(self, tmp_path):
        with pytest.raises(HarnessError, match=r"no oracle checkpoint: oracle\.json"):
            open_oracle(tmp_path)

    def test_that_cannot_be_written_is_a_sentence(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(HarnessError, match="cannot write checkpoints under"):
            build("fuzz", tmp_path / "file")


class TestPerturb:
    def test_changes_the_answer_at_that_token_and_nothing_before(self, oracle):
        sound = oracle("chain")
        cycle = sound.cycle("main")
        wrong = open_oracle(perturb(sound.path, cycle[7]))
        right = sound.greedy(cycle[:1], 12)
        answer = wrong.greedy(cycle[:1], 12)
        assert answer[:6] == right[:6]
        assert answer[6] != right[6]
        assert wrong.perturbed == {"row": cycle[7], "factor": -1.0}
        assert sound.perturbed is None

    def test_changes_a_looked_up_answer(self, oracle):
        sound = oracle("lookup")
        words = list(sound.tokenizer.words[:40])
        prompt = [*words, words[3]]
        wrong = open_oracle(perturb(sound.path, words[6]))
        assert wrong.greedy(prompt, 3)[:2] == sound.copy(prompt, 2)
        assert wrong.greedy(prompt, 3)[2] != words[6]

    def test_leaves_every_other_file_and_row_as_it_is(self, oracle):
        sound = oracle("fuzz")
        wrong = perturb(sound.path, 5, 2.0)
        before, after = contents(sound.path), contents(wrong)
        assert {name for name in before if before[name] != after[name]} == {
            "oracle.json",
            "model.safetensors",
        }
        one, other = sound.reference.weights, open_oracle(wrong).reference.weights
        changed = {name for name in one if (one[name] != other[name]).any()}
        assert changed == {"lm_head.weight"}
        rows = (one["lm_head.weight"] != other["lm_head.weight"]).any(axis=1)
        assert rows.nonzero()[0].tolist() == [5]

    def test_of_a_row_that_is_not_there_is_refused(self, oracle):
        with pytest.raises(HarnessError, match="lm_head has rows 0 to 1407"):
            perturb(oracle("fuzz").path, 1408)
