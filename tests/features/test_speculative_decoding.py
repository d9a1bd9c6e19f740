"""Speculation changes how fast an answer comes, never which answer; and every draft is accounted for.

The mimo model's head is right or wrong on purpose: on each of its cycles the share of accepted one-token drafts is
exact, so that the counters are compared for equality with a simulation.
"""

import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, drafts, logprobs, schema, stream
from fixtures.judge.schema import Constraint
from fixtures.models.drafts import simulate

pytestmark = [feature(17, "Speculative decoding"), serve(model="mimo", mtp=each(1, 3))]

ACCEPTANCE = {"always": 1.0, "three_quarters": 0.75, "half": 0.5, "never": 0.0}
TOKENS = 43  # one from prefill, then 42: whole periods (2, 3 and 7 tokens) of the walks' one-token drafts
PROMPT = 40
# One layer of float32 that adds nothing: worst-case rounding of the head's products, derived in test_logprobs.
TOLERANCE = 2.5e-4

every_cycle = pytest.mark.parametrize("cycle", ACCEPTANCE)
some_cycles = pytest.mark.parametrize(
    "cycle", ["three_quarters", "never"]
)  # drafts right and wrong; none right


@pytest.fixture
def k(server):
    """Tokens drafted per step."""
    return dict(server.spec.knobs)["mtp"]


def expected_counts(oracle, cycle, k, tokens=TOKENS):
    return simulate(oracle.next, oracle.draft, oracle.cycle(cycle)[0], tokens, k)


@proves
@catches("speculation_off", "draft_counter_frozen")
def test_the_models_own_head_makes_drafts(server, client, oracle, draft_counts, k):
    assert server.fact("speculative_tokens") == k
    with draft_counts(k) as seen:
        client.complete(make.walk(oracle, "always", PROMPT), max_tokens=TOKENS, temperature=0)
    assert seen().drafted > 0


@every_cycle
@catches(
    "accept_wrong_draft",
    "drop_drafted_token",
    "accept_nothing",
    "count_twice",
    "positions_swapped",
    "rejected_drafts_counted_as_accepted",
    "rejected_drafts_not_counted",
)
def test_greedy_answers_and_draft_counts_are_exact(client, oracle, draft_counts, k, cycle, record):
    prompt = make.walk(oracle, cycle, PROMPT)
    with draft_counts(k) as seen:
        reply = client.complete(prompt, max_tokens=TOKENS, temperature=0)
    expected = expected_counts(oracle, cycle, k)
    record.series(
        f"Drafts accepted at each position, {cycle}, k = {k}",
        enumerate(seen().per_position),
        x="position in the draft",
        y="accepted drafts",
        expected=enumerate(expected.per_position),
    )
    assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, TOKENS)) == []
    if k == 1:
        assert drafts.acceptance_rate(expected) == ACCEPTANCE[cycle]
    assert drafts.compare(seen(), expected) == []
    assert drafts.problems(seen(), TOKENS, k) == []
    record.number(
        "acceptance length", drafts.acceptance_length(seen()), unit="tokens per step", origin="counters"
    )


@catches("drop_drafted_token", "requests_mixed_up")
def test_a_crowd_of_requests_is_as_exact_as_each_alone(client, oracle, draft_counts, k):
    asked = [make.walk(oracle, cycle, PROMPT) for cycle in ACCEPTANCE]
    with draft_counts(k) as seen:
        replies = client.each(asked, at_once=len(asked), max_tokens=TOKENS, temperature=0)
    for prompt, reply in zip(asked, replies, strict=True):
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, TOKENS)) == []
    alone = [expected_counts(oracle, cycle, k) for cycle in ACCEPTANCE]
    assert seen().accepted == sum(count.accepted for count in alone)
    assert seen().drafted == sum(count.drafted for count in alone)


@some_cycles
@catches("logprobs_of_another_position")
def test_logprobs_are_the_models_own(client, oracle, cycle):
    prompt = make.walk(oracle, cycle, PROMPT)
    choice = client.complete(prompt, max_tokens=30, temperature=0, logprobs=1).choice
    answer = oracle.greedy(prompt, 30)
    right = oracle.answer_logprobs(prompt, answer)
    assert logprobs.problems(choice) == []
    assert logprobs.compare(choice.logprobs, right, answer, TOLERANCE) == []


@catches("stop_missed_inside_a_draft", "stop_string_shown")
@pytest.mark.parametrize("place", [0, 1, 2, 3, 5, 8])
def test_a_stop_string_ends_the_answer_wherever_in_a_draft_it_falls(client, oracle, place):
    prompt = make.walk(oracle, "always", PROMPT)
    answer = oracle.greedy(prompt, 12)
    reply = client.complete(
        prompt, max_tokens=12, temperature=0, stop=oracle.tokenizer.decode([answer[place]])
    )
    assert reply.text == oracle.tokenizer.decode(answer[:place])
    assert reply.choice.finish_reason == "stop"


@catches("stop_missed_inside_a_draft", "end_reported_as_cut")
def test_the_end_token_ends_the_answer_inside_a_draft(client, oracle):
    path = oracle.path_to_eos
    for start in range(len(path) - 5, len(path) - 1):
        reply = client.complete([path[start]] * 2, max_tokens=20, temperature=0)
        assert agree.problems(make.ids(oracle, reply.text), path[start + 1 : -1]) == []
        assert reply.choice.finish_reason == "stop"


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5])
@catches("answer_longer_than_asked")
def test_an_answer_is_never_longer_than_asked(client, oracle, tokens):
    prompt = make.walk(oracle, "always", PROMPT)
    reply = client.complete(prompt, max_tokens=tokens, temperature=0)
    assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, tokens)) == []
    assert reply.usage["completion_tokens"] == tokens


@some_cycles
@catches(
    "stream_loses_drafted_tokens",
    "done_missing",
    "two_finish_reasons",
    "stream_without_usage",
    "stream_changes_its_id",
)
def test_streamed_answers_are_the_same(client, oracle, cycle):
    prompt = make.walk(oracle, cycle, PROMPT)
    ask = {"max_tokens": 30, "temperature": 0, "logprobs": 1}
    whole, streamed = client.complete(prompt, **ask), client.complete(prompt, stream=True, **ask)
    assert stream.problems(streamed.exchange.events, "completion") == []
    assert stream.parity(whole, streamed) == []


@some_cycles
@catches("grammar_skips_drafts")
def test_a_grammar_that_admits_the_answer_does_not_change_it(client, oracle, cycle):
    prompt = make.walk(oracle, cycle, PROMPT)
    six_words = Constraint("regex", "(w[0-9]{3}){6}")
    reply = client.complete(prompt, max_tokens=40, temperature=0, constraint=six_words)
    assert schema.problems(reply, six_words) == []
    assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, 6)) == []


@some_cycles
@catches("grammar_skips_drafts")
def test_a_grammar_that_forbids_the_drafts_is_kept(client, oracle, cycle):
    prompt = make.walk(oracle, cycle, PROMPT)
    kept = Constraint("regex", "(alpha|beta|gamma): (true|false), [0-9]{12}")
    for reply in client.each([prompt] * 3, at_once=3, max_tokens=60, temperature=0, constraint=kept):
        assert schema.problems(reply, kept) == []


@catches("accept_wrong_draft")
def test_sampled_answers_are_words_the_model_may_say(client, oracle):
    prompt = make.walk(oracle, "half", PROMPT)
    choice = client.complete(prompt, max_tokens=40, temperature=0.7, logprobs=1, token_ids=True).choice
    right = oracle.answer_logprobs(prompt, choice.token_ids)
    if client.catalog.promise("sampled_logprobs") == "scaled":
        right = logprobs.tempered(right, 0.7)
    assert logprobs.compare(choice.logprobs, right, choice.token_ids, TOLERANCE) == []


@proves
@serve(model="mimo", ngram=3)
@catches("speculation_off", "draft_counter_frozen", "accept_wrong_draft")
def test_words_that_repeat_are_found_and_all_accepted(server, client, oracle, draft_counts):
    assert server.fact("speculative_method") == "ngram"
    prompt = make.walk(oracle, "short", 3 * len(oracle.cycle("short")))
    with draft_counts(3) as seen:
        reply = client.complete(prompt, max_tokens=TOKENS, temperature=0)
    assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, TOKENS)) == []
    assert drafts.compare(seen(), simulate(oracle.next, oracle.next, prompt[-1], TOKENS, 3)) == []


@serve(model="mimo", ngram=3)
@catches("drafts_without_a_match")
def test_words_that_do_not_repeat_give_no_drafts(client, oracle, draft_counts):
    prompt = make.walk(oracle, "always", PROMPT)
    with draft_counts(3) as seen:
        reply = client.complete(prompt, max_tokens=TOKENS, temperature=0)
    assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, TOKENS)) == []
    assert seen().drafted == 0


@serve(model="mimo", ngram=3)
@catches("accept_wrong_draft")
def test_words_that_repeat_with_another_ending_are_rejected(client, oracle, draft_counts):
    """The lookup proposes what followed last time; the model says something else."""
    walked = make.walk(oracle, "always", PROMPT)
    beginning, other = walked[-4:], make.words(oracle, 6, seed=1, avoid=oracle.cycle("always"))
    prompt = [*beginning, *other, *beginning]
    with draft_counts(3) as seen:
        reply = client.complete(prompt, max_tokens=10, temperature=0)
    assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, 10)) == []
    assert seen().accepted == 0
