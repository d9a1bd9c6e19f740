"""Features that are on together leave each answer, and each count, what it is with one alone.

Servers: every two settings of speculation, prefix caching, grammar library, prefill in parts, KV type and scheduling
meet on one of them (`serve_pairs`). Requests: every two of streaming, log-probabilities, constraint, stop string and
drawing meet in one, and each is sent to each server. One and three drafts a step are test_speculative_decoding's; so
is all drafting on SGLang's CPU, whose interpreted kernels take half a second for a token.

Reports that are decided elsewhere: answers with prompts cached in either order (vllm#42245, vllm#8268) without other
features in test_prefix_caching; grammars that forbid or admit drafts, one pattern, in test_speculative_decoding. Not
here: an end-of-thinking token within a draft (vllm#36138, vllm#44993, vllm#16182, vllm#41132), which needs a parser.
"""

import re
from itertools import pairwise

import pytest

from fixtures import catches, feature, pairs, proves, serve, serve_pairs
from fixtures import prompts as make
from fixtures.engines.rules import NotApplicable
from fixtures.judge import agree, drafts, instance, logprobs, prefix, schema, stream
from fixtures.judge.schema import Constraint
from fixtures.models.drafts import simulate

pytestmark = [
    feature("X", "Interactions"),
    serve_pairs(
        speculation=[{"model": "lookup"}, {"model": "lookup", "ngram": 3}, {"model": "mimo", "mtp": 2}],
        prefix_cache=[True, False],
        grammar=["xgrammar", "llguidance"],
        chunk=[64, 0],
        kv_dtype=["auto", "fp8"],
        async_scheduling=[True, False],
    ),
]

LENGTH = 300  # tokens of a prompt: five parts of 64, two blocks of 128 and a rest
LENGTHS = [257, 300, 385, 450]
TOKENS = 22  # one from prefill, then six steps of three tokens and three of one where a head drafts two
TOLERANCE = 1e-3  # as in test_prefix_caching
# Answers are exact with keys and values in fp8 as well: values are 1 or -1, and where a word stood before, its score
# leads all others by 20 nats. The reference that rounds what it caches moves by 1.4e-3 nats; engines round in two ways.
FP8_TOLERANCE = 5e-3
SIX_WORDS = Constraint("regex", "(w[0-9]{3}){6}")
# By a pattern: a schema lets white space stand between tokens, which a greedy answer may repeat for ever.
OBJECT = Constraint("regex", r'\{"pet": "(cat|dog)", "tame": (true|false)\}')
HELD = {"free": None, "six_words": SIX_WORDS, "object": OBJECT}
FACTORS = {
    "streamed": [False, True],
    "logprobs": [None, 1],
    "held": list(HELD),
    "stopped": [False, True],
    "drawn": ["greedy", "once", "twice"],
}
ROWS = [
    {name: values[n] for (name, values), n in zip(FACTORS.items(), row, strict=True)}
    for row in pairs.rows([len(values) for values in FACTORS.values()])
]


def told(row):
    return "-".join(f"{name}_{value}" for name, value in row.items() if value)


class Case:
    """A prompt, its greedy answer, and how the model, and who drafts for it, go on after a token."""

    def __init__(self, oracle, length=LENGTH):
        if oracle.family == "mimo":
            self.prompt = make.walk(oracle, "three_quarters", length)
            self.follow, self.draft = oracle.next, oracle.draft
        else:
            self.prompt = make.question(oracle, length, seed=length)
            self.follow = self.draft = dict(
                pairwise(self.prompt)
            ).__getitem__  # each word stands once before its end
        self.answer = oracle.greedy(self.prompt, TOKENS)

    def counts(self, k):
        """Drafts of a greedy answer by itself."""
        return simulate(self.follow, self.draft, self.prompt[-1], TOKENS, k)


@pytest.fixture
def case(oracle):
    return Case(oracle)


@pytest.fixture
def k(server):
    """Tokens drafted per step, 0 without speculation."""
    knobs = dict(server.spec.knobs)
    return knobs.get("mtp") or knobs.get("ngram") or 0


@pytest.fixture
def drafted(k):
    """Tokens drafted per step, on servers that draft."""
    if not k:
        raise NotApplicable("nothing drafts on this server")
    return k


def saved(reply):
    """Cached tokens as the reply counts them; engines leave the field out when there are none."""
    return reply.cached_tokens or 0


def lost(server):
    """Tokens of a hit that a prediction head has computed again, since it needs the last positions' hidden states."""
    return server.fact("block_size") if "mtp" in dict(server.spec.knobs) else 0


def hit(server, prompt):
    """(fewest, most) tokens of a prompt that the cache gives when the same was asked before."""
    if not dict(server.spec.knobs)["prefix_cache"]:
        return 0, 0
    most = prefix.cached(prompt, [prompt], server.fact("block_size"))
    return max(most - lost(server), 0), most


def asked(row, case, oracle):
    """A row as the fields of a request."""
    ask = {"max_tokens": 40 if row["held"] == "object" else TOKENS, "temperature": 0, "token_ids": True}
    ask |= {"constraint": HELD[row["held"]], "stream": row["streamed"]}
    ask |= {} if row["logprobs"] is None else {"logprobs": row["logprobs"]}
    if row["stopped"]:
        ask["stop"] = "}" if row["held"] == "object" else oracle.tokenizer.decode(case.answer[3:4])
    if row["drawn"] != "greedy":
        ask |= {"temperature": 0.7} | ({"n": 2} if row["drawn"] == "twice" else {})
    return ask


def wrong_text(row, case, oracle, choice):
    """What is wrong with a choice's text, and with how it ended."""
    ended = "length" if row["held"] == "free" and not row["stopped"] else "stop"
    found = []
    if row["held"] == "object":
        fault = instance.mismatch(choice.text + "}" * row["stopped"], OBJECT.value)
        found = [fault] if fault else []
    elif row["drawn"] == "greedy":
        right = case.answer[: 3 if row["stopped"] else 6 if row["held"] == "six_words" else TOKENS]
        found = agree.problems(make.ids(oracle, choice.text), right)
    elif row["held"] == "six_words":
        fits = re.fullmatch(f"(w[0-9]{{3}}){{{0 if row['stopped'] else 6},6}}", choice.text)
        return [] if fits else [f"{choice.text!r}"]  # which word is drawn, and whether the stop is, is chance
    else:
        stop = oracle.tokenizer.decode(case.answer[3:4])
        return [f"{choice.text!r} has the stop string"] if row["stopped"] and stop in choice.text else []
    return found + [f"finish_reason is {choice.finish_reason}"] * (choice.finish_reason != ended)


@pytest.fixture
def tolerance(server):
    return FP8_TOLERANCE if dict(server.spec.knobs)["kv_dtype"] == "fp8" else TOLERANCE


def wrong_logprobs(row, case, oracle, client, choice, tolerance):
    """What is wrong with a choice's log-probabilities: in themselves, and against the model's."""
    found = logprobs.problems(choice)
    if found or row["held"] == "object":
        return found
    ids = choice.token_ids[: len(choice.logprobs)]
    right = oracle.answer_logprobs(case.prompt, ids)
    if client.catalog.promise("sampled_logprobs") == "scaled" and row["drawn"] != "greedy":
        right = logprobs.tempered(right, 0.7)
    if row["held"] == "free":
        return logprobs.compare(choice.logprobs, right, ids, tolerance)
    # Both engines share out among the grammar's choices what it forbids, so that each of them only gains.
    least = right[range(len(ids)), list(ids)] - tolerance
    return [(entry, low) for entry, low in zip(choice.logprobs, least, strict=True) if entry.logprob < low]


@proves
@catches("backend_replaced")
def test_each_setting_is_in_force(server, client):
    told = {name: client.catalog.fact_of_knob(name) for name, _ in server.spec.knobs}
    assert {name: server.fact(fact) for name, fact in told.items()} == dict(server.spec.knobs)


@pytest.mark.parametrize("row", ROWS, ids=told)
@catches(
    "accept_wrong_draft",
    "drop_drafted_token",
    "logprobs_of_another_position",
    "constraint_dropped",
    "constraint_dropped_when_streaming",
    "stream_loses_drafted_tokens",
    "stop_missed_inside_a_draft",
    "stale_block",
    "cache_off",
)
def test_every_two_settings_of_a_request_go_together(
    row, case, k, server, client, oracle, draft_counts, tolerance
):
    client.reset_prefix_cache()
    client.complete(case.prompt, max_tokens=1, temperature=0)
    with draft_counts(k) as seen:
        reply = client.complete(case.prompt, **asked(row, case, oracle))
    assert len(reply.choices) == (2 if row["drawn"] == "twice" else 1)
    for choice in reply.choices:
        assert wrong_text(row, case, oracle, choice) == []
        assert row["logprobs"] is None or wrong_logprobs(row, case, oracle, client, choice, tolerance) == []
    assert not row["streamed"] or stream.problems(reply.exchange.events, "completion") == []
    if row["drawn"] != "twice":
        least, most = hit(server, case.prompt)
        assert least <= saved(reply) <= most
    assert drafts.problems(seen(), 0, k) == []
    if not k:
        assert seen().drafted == 0
    elif (row["held"], row["drawn"], row["stopped"]) == ("free", "greedy", False):
        assert drafts.compare(seen(), case.counts(k)) == []


@catches(
    "speculation_off",
    "speculation_off_with_logprobs",
    "rejected_drafts_counted_as_accepted",
    "logprobs_all_zero",
    "logprobs_of_another_position",
)
def test_logprobs_are_told_and_drafts_go_on(case, drafted, client, oracle, draft_counts, tolerance):
    """vllm#34497, vllm#17876: asking for them switched drafts off, or gave 0 for every token."""
    with draft_counts(drafted) as seen:
        reply = client.complete(case.prompt, max_tokens=TOKENS, temperature=0, logprobs=1)
    right = oracle.answer_logprobs(case.prompt, case.answer)
    assert logprobs.compare(reply.choice.logprobs, right, case.answer, tolerance) == []
    assert drafts.compare(seen(), case.counts(drafted)) == []


@serve(model="moe", chunk=64, prefix_cache=False)
@pytest.mark.dirties
@catches("requests_mixed_up")
def test_a_seeded_request_is_served_in_parts(client, oracle):
    """vllm#10097: the engine takes back the random number of a part without an answer, which a CPU's source cannot."""
    prompt = make.words(oracle, 100, seed=1)
    drawn = client.complete(prompt, max_tokens=4, temperature=0.7, seed=7)
    assert len(drawn.choice.text) > 0
    other = make.words(oracle, 100, seed=2, avoid=prompt[-1:])
    reply = client.complete(other, max_tokens=4, temperature=0)
    assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(other, 4)) == []


@pytest.mark.parametrize("length", LENGTHS)
@catches("cache_off", "stale_block")
def test_a_prompt_hits_each_time(length, server, client, oracle):
    """vllm#51441, vllm#44082: no hit at most lengths."""
    case = Case(oracle, length)
    client.reset_prefix_cache()
    replies = [client.complete(case.prompt, max_tokens=TOKENS, temperature=0) for _ in range(3)]
    for reply in replies:
        assert agree.problems(make.ids(oracle, reply.text), case.answer) == []
    least, most = hit(server, case.prompt)
    assert saved(replies[0]) == 0
    assert all(least <= saved(reply) <= most for reply in replies[1:])


@pytest.mark.parametrize("length", LENGTHS)
@catches("accept_nothing")
def test_a_prompt_has_its_drafts_accepted_each_time(length, drafted, client, oracle, draft_counts):
    """sglang#8726: fewer drafts are accepted when a prompt repeats."""
    case = Case(oracle, length)
    client.reset_prefix_cache()
    due = case.counts(drafted)
    for _ in range(3):
        with draft_counts(drafted) as seen:
            client.complete(case.prompt, max_tokens=TOKENS, temperature=0)
        assert seen().per_position == due.per_position
        # vLLM takes the last token of a prompt for decoding when it is all that is left, and drafts once in vain.
        assert seen().steps - due.steps in (0, 1)


@catches("prompt_logprobs_wrong_in_later_parts", "stale_prompt_logprobs")
def test_a_scored_text_does_not_depend_on_how_it_is_computed(client, oracle, tolerance):
    """vllm#53488, vllm#42245, vllm#8268: prompt log-probabilities with drafts, small parts and cached beginnings.

    A word of the second half follows what it followed before, which is certain whatever keys are rounded to.
    """
    half = make.words(oracle, 230, seed=3)
    texts = [half[:n] * 2 for n in (30, 150, 230)]
    for at_once in (1, 3):
        asked = client.each(texts, at_once=at_once, max_tokens=1, temperature=0, echo=True, logprobs=1)
        for text, reply in zip(texts, asked, strict=True):
            first = len(text) // 2 + 1
            right = oracle.logprobs(text[:-1])[first - 1 :]
            assert (
                logprobs.compare(reply.choice.logprobs[first : len(text)], right, text[first:], tolerance)
                == []
            )


@catches("grammar_skips_drafts", "constraint_dropped")
def test_drafts_that_the_grammar_forbids_are_not_taken(client, oracle, k, draft_counts):
    """vllm#15554: what an n-gram proposes, a text of another schema, was not held to the grammar."""
    seen_before = oracle.tokenizer.encode('{"pet": "bird", "tame": 7}, ' * 4)
    with draft_counts(k) as seen:
        reply = client.complete(seen_before, max_tokens=40, temperature=0, constraint=OBJECT)
    assert schema.problems(reply, OBJECT) == []
    assert drafts.problems(seen(), 0, k) == []


@catches("runs_on_after_the_end", "tokens_burn_unseen", "tokens_twice", "constraint_ends_early")
def test_an_object_ends_at_its_brace(client, case):
    """sglang#9187, sglang#21723, vllm#26292: cut at a rejected draft, gone on after its end, tokens doubled."""
    for streamed in (False, True):
        reply = client.complete(case.prompt, max_tokens=40, temperature=0, constraint=OBJECT, stream=streamed)
        assert schema.problems(reply, OBJECT) == []
        assert reply.choice.finish_reason == "stop"
        assert reply.text.endswith("}")
        assert reply.usage["completion_tokens"] <= len(reply.text) + 1  # a character is a token; and the end


@catches("grammars_mixed_up", "constraint_dropped")
def test_thirty_constrained_requests_at_once_are_all_kept(client, oracle, k, draft_counts):
    """vllm#27969, sglang#15373, vllm#29379: the engine died of a crowd of constrained requests, or cut them short."""
    prompts = [make.words(oracle, 8, seed=n % 3) for n in range(30)]
    with draft_counts(k) as seen:
        objects = client.each(prompts, at_once=30, max_tokens=40, temperature=0, constraint=OBJECT)
    words = client.each(prompts[:4], at_once=4, max_tokens=40, temperature=0, constraint=SIX_WORDS)
    assert [problem for reply in objects for problem in schema.problems(reply, OBJECT)] == []
    assert [problem for reply in words for problem in schema.problems(reply, SIX_WORDS)] == []
    assert drafts.problems(seen(), 0, k) == []
