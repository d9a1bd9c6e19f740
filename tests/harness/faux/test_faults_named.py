"""What single faults do to a request, an answer or a counter, to the number."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.faux.faults import FAULTS, changes, drafts, edit, metrics, pieces
from fixtures.faux.scene import Answer, Ask, Scene
from fixtures.model import DraftCounts
from tests.harness.faux.fault_samples import (
    CATALOGS,
    COMPLETIONS,
    SPOKEN,
    Dialect,
    play,
    prompt,
    reply,
    value,
    words,
)

each_engine = pytest.mark.parametrize("engine", CATALOGS)
EIGHT = words(*range(1, 9))


@pytest.fixture
def dialect(engine):
    return Dialect(CATALOGS[engine])


def only(name, dialect, *exchanges):
    """The last of these exchanges under a fault: (what is asked, the answer as a client reads it)."""
    asked, answer = play(FAULTS[name], dialect.catalog, exchanges)[-1]
    return asked, reply(exchanges[-1][0], answer)


@each_engine
class TestRequests:
    @pytest.mark.parametrize(
        ("name", "before", "after"),
        [
            ("seed_ignored", {"seed": 1, "n": 2}, {"n": 2}),
            ("top_k_ignored", {"top_k": 1, "top_p": 0.1}, {"top_p": 0.1}),
            ("top_p_ignored", {"top_k": 1, "top_p": 0.1}, {"top_k": 1}),
            ("temperature_ignored", {"temperature": 2}, {"temperature": 1}),
            ("answer_does_not_end", {}, {"ignore_eos": True}),
            ("answer_longer_than_asked", {"max_tokens": 3}, {"max_tokens": 4}),
            ("stop_missed_inside_a_draft", {"stop": "x"}, {"ignore_eos": True}),
            ("salt_ignored", {"cache_salt": "a"}, {}),
            ("removed_field_ignored", {"guided_json": {}, "seed": 1}, {"seed": 1}),
            ("constraint_dropped", {"response_format": {"type": "json_object"}, "seed": 1}, {"seed": 1}),
            ("constraint_dropped_when_streaming", {"response_format": {"type": "json_object"}}, None),
        ],
    )
    def test_a_setting_is_ignored(self, dialect, name, before, after):
        ask = Ask("POST", COMPLETIONS, {"prompt": "x", **before})
        expected = ask.body if after is None else {"prompt": "x", **after}
        assert FAULTS[name].ask(Scene(dialect.catalog), ask) == Ask("POST", COMPLETIONS, expected)

    def test_a_pattern_is_dropped_where_the_release_has_it(self, dialect):
        ask, _ = dialect.complete([], **dialect.held("a"))
        asked = FAULTS["constraint_dropped"].ask(Scene(dialect.catalog), ask)
        assert asked.body == dialect.complete([])[0].body

    def test_bounds_are_dropped_at_any_depth(self, dialect):
        schema = {"anyOf": [{"type": "integer", "minimum": 1, "maxLength": 2}], "maximum": 3}
        body = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
        asked = FAULTS["keyword_ignored"].ask(Scene(dialect.catalog), Ask("POST", COMPLETIONS, body))
        left = asked.body["response_format"]["json_schema"]["schema"]
        assert left == {"anyOf": [{"type": "integer", "maxLength": 2}]}

    def test_salts_are_all_different_when_the_cache_is_off(self, dialect):
        same = [dialect.complete(EIGHT)] * 3
        salts = [asked.body["cache_salt"] for asked, _ in play(FAULTS["cache_off"], dialect.catalog, same)]
        assert len(set(salts)) == 3
        assert all(salt.isalnum() for salt in salts)

    def test_a_reset_is_answered_and_not_passed_on(self, dialect):
        ((asked, answer),) = play(FAULTS["reset_ignored"], dialect.catalog, [dialect.reset()])
        assert (asked, answer.status) == (None, 200)


@each_engine
class TestTokens:
    def test_a_wrong_draft_is_one_wrong_word(self, dialect):
        _, seen = only(
            "accept_wrong_draft", dialect, dialect.complete(EIGHT, return_token_ids=True, logprobs=1)
        )
        assert seen.text == "".join(words(1, 3, 3, 4, 5, 6, 7, 8))
        assert list(seen.choice.token_ids) == prompt(1, 3, 3, 4, 5, 6, 7, 8)
        assert [entry.token for entry in seen.choice.logprobs] == words(1, 3, 3, 4, 5, 6, 7, 8)

    @pytest.mark.parametrize("per_chunk", [1, 2, 3])
    def test_a_lost_draft_is_lost_from_text_ids_numbers_and_counts(self, dialect, per_chunk):
        ask = {"return_token_ids": True, "logprobs": 1, "stream": True, "per_chunk": per_chunk}
        _, seen = only("drop_drafted_token", dialect, dialect.complete(EIGHT, **ask))
        left = words(1, 2, 4, 5, 6, 7, 8)
        assert seen.text == "".join(left)
        assert list(seen.choice.token_ids) == prompt(1, 2, 4, 5, 6, 7, 8)
        assert [entry.token for entry in seen.choice.logprobs] == left
        assert seen.usage["completion_tokens"] == 7

    def test_offsets_follow_the_text(self, dialect):
        if not dialect.is_vllm:
            pytest.skip("SGLang gives no offsets")
        told = dialect.complete(EIGHT, logprobs=1, stream=True, per_chunk=2)
        ((_, answer),) = play(FAULTS["drop_drafted_token"], dialect.catalog, [told])
        chunks = [json.loads(data) for _, data in answer.events[:4]]
        offsets = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks]
        assert offsets == [[0, 4], [8], [12, 16], [20, 24]]

    def test_a_stale_block_shows_only_where_one_was_taken(self, dialect):
        assert only("stale_block", dialect, dialect.complete(EIGHT))[1].text == "".join(EIGHT)
        _, seen = only("stale_block", dialect, dialect.complete(EIGHT, cached=128))
        assert seen.text == "".join(words(2, 2, 3, 4, 5, 6, 7, 8))

    def test_the_second_likeliest_is_taken_with_its_own_number(self, dialect):
        ask, answer = dialect.complete(EIGHT, logprobs=2)
        _, seen = only("greedy_takes_the_second", dialect, (ask, answer))
        first = seen.choice.logprobs[0]
        assert seen.text.startswith("w999w002")
        assert first.logprob == first.top["w999"] < first.top["w001"]

    def test_what_was_asked_only_for_the_second_is_not_shown(self, dialect):
        ask, _ = dialect.complete(EIGHT)
        _, answer = dialect.complete(EIGHT, logprobs=5)
        fault, scene = FAULTS["greedy_takes_the_second"], Scene(dialect.catalog)
        assert fault.ask(scene, ask).body["logprobs"] == 5
        seen = reply(ask, fault.answer(scene, ask, answer))
        assert seen.text.startswith("w999w002")
        assert seen.choice.logprobs is None

    def test_a_prompts_numbers_are_shifted_and_the_answers_are_not(self, dialect):
        told = dialect.complete(words(5), prompt=prompt(1, 2, 3), echo=True, logprobs=1)
        before = [entry.logprob for entry in reply(*told).choice.logprobs]
        _, seen = only("prompt_logprobs_shifted", dialect, told)
        after = [entry.logprob for entry in seen.choice.logprobs]
        assert after == [None, before[2], before[3], before[3]]

    def test_all_numbers_are_off_by_a_thousandth(self, dialect):
        told = dialect.chat(EIGHT, logprobs=True, top_logprobs=2)
        _, seen = only("logprobs_off_by_1e-3", dialect, told)
        for mine, right in zip(seen.choice.logprobs, reply(*told).choice.logprobs, strict=True):
            assert mine.logprob == pytest.approx(right.logprob - 1e-3)
            assert mine.top == pytest.approx({token: number - 1e-3 for token, number in right.top.items()})


@each_engine
class TestTexts:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("json_key_twice", '{"x":5,"y":"abc","x":5}'),
            ("control_characters_in_strings", '{"x":5,"y":"\aabc"}'),
            ("constraint_ends_early", SPOKEN[:-1]),
        ],
    )
    @pytest.mark.parametrize("streamed", [False, True])
    def test_a_constrained_text_is_changed(self, dialect, name, text, streamed):
        held = {"response_format": {"type": "json_object"}, "stream": streamed, "finish": "stop"}
        _, seen = only(name, dialect, dialect.complete(list(SPOKEN), **held))
        assert seen.text == text
        assert seen.usage["completion_tokens"] == len(text)
        assert only(name, dialect, dialect.complete(EIGHT))[1].text == "".join(EIGHT)

    def test_grammars_are_mixed_up_only_with_another(self, dialect):
        one, other = (dialect.complete([text], **dialect.held(text)) for text in "ab")
        seen = [
            reply(one[0], answer).text
            for _, answer in play(FAULTS["grammars_mixed_up"], dialect.catalog, [one, one, other])
        ]
        assert seen == ["a", "a", "a"]

    def test_a_crowds_answers_are_swapped(self, dialect):
        one, other = (dialect.complete(words(n), prompt=prompt(n)) for n in (1, 2))
        seen = [
            reply(one[0], answer).text
            for _, answer in play(FAULTS["requests_mixed_up"], dialect.catalog, [one, other, other])
        ]
        assert seen == ["w001", "w001", "w001"]

    def test_the_engine_is_dead_after_what_it_refused(self, dialect):
        fine = dialect.complete(EIGHT)
        refused = dialect.refusal(**dialect.held("["))
        seen = play(FAULTS["engine_dies_of_bad_input"], dialect.catalog, [fine, refused, fine])
        assert [answer.broken for _, answer in seen] == [False, True, True]

    def test_a_refusal_becomes_a_text(self, dialect):
        _, seen = only("invalid_accepted", dialect, dialect.refusal(**dialect.held("[")))
        assert (seen.status, seen.text) == (200, "a")


class TestCounters:
    PAGE = '# TYPE a_total counter\na_total{x="1"} 5.0\na_total 7\na_total_more 9\n'

    def test_series_are_found_by_their_whole_name(self):
        assert metrics.series(self.PAGE, "a_total") == {'{x="1"}': 5.0, "": 7.0}
        changed = metrics.replaced(self.PAGE, "a_total", {"": 1.0})
        assert changed == self.PAGE.replace("a_total 7", "a_total 1.0")

    @each_engine
    @pytest.mark.parametrize(
        ("name", "metric", "growth"),
        [
            ("hit_counter_frozen", "prefix_hits", [0, 0]),
            ("usage_and_counter_disagree", "prefix_hits", [2 * 128 + 1, 5 * 128 + 1]),
            ("counter_falls", "generated_tokens", [-16, -40]),
        ],
    )
    def test_growth_is_counted_from_the_first_page(self, dialect, name, metric, growth):
        told = [dialect.page(1), dialect.complete(EIGHT), dialect.page(3), dialect.page(6)]
        seen = play(FAULTS[name], dialect.catalog, told)
        start, *later = (value(seen[n][1], dialect.catalog.metric(metric)) for n in (0, 2, 3))
        assert start == value(told[0][1], dialect.catalog.metric(metric))
        assert [number - start for number in later] == growth

    @pytest.mark.parametrize(
        ("name", "growth", "places"),
        [
            ("speculation_off", (0, 0, 0), (0, 0, 0)),
            ("draft_counter_frozen", (8, 0, 16), (8, 6, 2)),
            ("accept_nothing", (24, 72, 0), (0, 0, 0)),
            ("count_twice", (16, 48, 32), (16, 12, 4)),
            ("rejected_drafts_counted_as_accepted", (8, 24, 24), (8, 8, 8)),
            ("rejected_drafts_not_counted", (8, 16, 16), (8, 6, 2)),
            ("drafts_without_a_match", (9, 27, 16), (8, 6, 2)),
            ("positions_swapped", (8, 24, 16), (2, 6, 8)),
        ],
    )
    def test_drafts_of_the_page(self, name, growth, places):
        dialect = Dialect(CATALOGS["vllm"])
        told = [dialect.page(1), dialect.complete(EIGHT), dialect.page(3)]
        seen = play(FAULTS[name], dialect.catalog, told)
        names = [dialect.catalog.metric(one) for one in ("draft_steps", "drafted_tokens", "accepted_tokens")]
        assert tuple(value(seen[2][1], one) - value(seen[0][1], one) for one in names) == growth
        position = dialect.catalog.metric("accepted_tokens_position")
        by_place = [
            value(seen[2][1], position, position=n) - value(seen[0][1], position, position=n)
            for n in range(3)
        ]
        assert tuple(by_place) == places

    @pytest.mark.parametrize(
        ("name", "steps", "counts", "histogram"),
        [
            ("speculation_off", -3, (0, 0), [0, 0, 0, 0]),
            ("draft_counter_frozen", 0, (0, 8), [0, 0, 1, 2]),
            ("accept_nothing", 8, (33, 0), [11, 0, 0, 0]),
            ("count_twice", 3, (18, 16), [0, 0, 2, 4]),
            ("rejected_drafts_counted_as_accepted", 0, (9, 9), [0, 0, 0, 3]),
            ("rejected_drafts_not_counted", 0, (8, 8), [0, 0, 1, 2]),
            ("drafts_without_a_match", 1, (12, 8), [1, 0, 1, 2]),
            ("positions_swapped", 0, (9, 8), [0, 0, 2, 1]),
        ],
    )
    @pytest.mark.parametrize("streamed", [False, True])
    def test_drafts_of_a_reply(self, name, steps, counts, histogram, streamed):
        """The page counts only steps: as many more or less as the replies do."""
        dialect = Dialect(CATALOGS["sglang"])
        told = [dialect.page(1), dialect.complete(EIGHT, stream=streamed), dialect.page(3)]
        seen = play(FAULTS[name], dialect.catalog, told)
        found = [edit.dig(body, "sglext.spec_tokens_details") for body in edit.bodies(seen[1][1])]
        (details,) = (one for one in found if one)
        assert (details["spec_num_proposed_drafts"], details["spec_num_correct_drafts"]) == counts
        assert details["spec_correct_drafts_histogram"] == histogram
        metric = dialect.catalog.metric("draft_steps")
        assert value(seen[2][1], metric) - value(told[2][1], metric) == steps

    @given(
        places=st.lists(st.integers(0, 50), min_size=1, max_size=4).map(lambda n: sorted(n, reverse=True)),
        more=st.integers(0, 50),
    )
    def test_a_reply_keeps_the_counts_it_is_told(self, places, more):
        counts = DraftCounts(places[0] + more, 3 * (places[0] + more), sum(places), tuple(places))
        details = {}
        drafts.tell_by_reply(details, counts)
        assert drafts.counts_of_reply(details) == counts


@each_engine
class TestHits:
    """Hits of a prompt of 380 tokens that comes again, and of one that shares 200 with it; blocks of 128 or 1."""

    @pytest.mark.parametrize(
        ("name", "vllm", "sglang"),
        [
            ("cached_tokens_off_by_one", [0, 255, 127], [0, 378, 199]),
            ("hits_beyond_the_block", [0, 380, 200], [0, 380, 200]),
            ("hits_beyond_the_prefix", [0, 256, 256], [0, 379, 201]),
            ("cache_cannot_be_switched_off", [0, 256, 128], [0, 379, 200]),
            ("generated_tokens_not_cached", [0, 256, 128], [0, 379, 200]),
        ],
    )
    def test_are_told_as_the_fault_has_it(self, dialect, engine, name, vllm, sglang):
        block = 128 if dialect.is_vllm else 1
        branch = prompt(*range(200), *range(500, 600))
        again = dialect.complete(EIGHT, cached=379 // block * block)
        shared = dialect.complete(EIGHT, prompt=branch, cached=200 // block * block)
        told = [dialect.page(1), dialect.info(), dialect.complete(EIGHT), again, shared]
        answers = [answer for _, answer in play(FAULTS[name], dialect.catalog, told)]
        seen = [reply(told[n][0], answers[n]).cached_tokens or 0 for n in (2, 3, 4)]
        assert seen == {"vllm": vllm, "sglang": sglang}[engine]

    def test_a_cache_that_cannot_be_switched_off_counts_its_hits(self, dialect):
        told = [
            dialect.page(1),
            dialect.info(),
            dialect.complete(EIGHT),
            dialect.complete(EIGHT),
            dialect.page(1),
        ]
        seen = play(FAULTS["cache_cannot_be_switched_off"], dialect.catalog, told)
        metric = dialect.catalog.metric("prefix_hits")
        assert value(seen[4][1], metric) - 128 == (256 if dialect.is_vllm else 379)


class TestPieces:
    @given(
        tokens=st.lists(st.sampled_from([*words(1, 22, 333), "a", "{", "是", "�"]), max_size=12),
        told=st.fixed_dictionaries({}, optional={"logprobs": st.just(2), "stream": st.booleans()}),
        per_chunk=st.integers(1, 4),
        engine=st.sampled_from(sorted(CATALOGS)),
        chat=st.booleans(),
    )
    def test_an_answer_that_is_taken_apart_and_put_together_is_the_same(
        self, tokens, told, per_chunk, engine, chat
    ):
        dialect = Dialect(CATALOGS[engine])
        make = dialect.chat if chat else dialect.complete
        ask, answer = make(tokens, per_chunk=per_chunk, **told)
        assert pieces.respoken(ask, answer, lambda same: same, echo=True) == answer

    @given(old=st.text(alphabet="ab{是w0", max_size=8), new=st.text(alphabet="ab{是w0", max_size=8))
    def test_a_text_becomes_the_one_that_it_is_to_be(self, old, new):
        ask = Ask("POST", COMPLETIONS, {"prompt": "x"})
        body = {
            "choices": [{"index": 0, "text": old}],
            "usage": {"completion_tokens": 99, "total_tokens": 100},
        }
        seen = pieces.respoken(ask, Answer(body=json.dumps(body)), changes.retyped(lambda _: new))
        assert edit.said(seen) == (new if old else "")

    def test_a_stop_that_is_not_shown_stays_hidden(self):
        dialect = Dialect(CATALOGS["vllm"])
        told = dialect.complete(
            words(1, 2), hidden=words(3), logprobs=1, return_token_ids=True, finish="stop"
        )
        _, seen = only("accept_wrong_draft", dialect, told)
        assert seen.text == "w001w003"
        assert [entry.token for entry in seen.choice.logprobs] == words(1, 3, 3)
