"""A token finds its 8 among 64 small experts, and each of them adds its share, however tokens and experts are spread.

Of the fine model's experts each is loud: without one of them some log-probability of a text is off by more than a
nat. Tokens that travel between GPUs, and balancing, need several of them and are not seen here: on one rank expert
parallelism changes nothing, which is what is checked.
"""

import numpy as np
import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs, stream

pytestmark = [
    feature(8, "Fine-grained experts and all-to-all"),
    serve(model="fine", expert_parallel=False),
]

TOLERANCE = 5e-4  # float32, derived in test_moe_kernels
EXPERTS, ACTIVE = 64, 8
TEXT = 192  # three words of each class
ANSWER = 24


def words(oracle, n, seed):
    """Return n words, none of which leads to an end."""
    return make.words(oracle, n, seed, avoid=oracle.path_to_eos)


def check_prompt(client, oracle, text):
    """Judge the log-probabilities of a text's own tokens."""
    choice = client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=1).choice
    right = oracle.logprobs(text[:-1])
    assert logprobs.compare(choice.logprobs[1 : len(text)], right, text[1:], TOLERANCE) == []


def check_answer(oracle, prompt, reply):
    """Judge the tokens of an answer, and their log-probabilities."""
    answer = oracle.greedy(prompt, ANSWER)
    right = oracle.answer_logprobs(prompt, answer)
    assert agree.problems(make.ids(oracle, reply.text), answer) == []
    assert logprobs.compare(reply.choice.logprobs, right, answer, TOLERANCE) == []


@proves
@catches(
    "experts_swapped",
    "expert_lost",
    "router_rows_swapped",
    "one_expert_less",
    "expert_weights_normalised_otherwise",
    "logprobs_off_by_1e-3",
)
def test_each_token_is_computed_by_its_eight_of_sixty_four(server, client, oracle):
    assert server.fact("architecture") == "Qwen3MoeForCausalLM"
    text = words(oracle, 300, seed=1)
    routes = oracle.reference.routes(text)
    assert routes.shape == (2, 300, ACTIVE)
    assert [len(set(layer.ravel().tolist())) for layer in routes] == [EXPERTS] * 2
    check_prompt(client, oracle, text)


@pytest.mark.parametrize("cycle", ["one", "even"])
@catches("one_expert_less", "logprobs_off_by_1e-3")
def test_a_text_for_eight_experts_is_as_exact_as_one_for_all(client, oracle, cycle):
    """Of the words of "one", all go to the same eight experts of a layer: the greatest imbalance that there is."""
    walked = oracle.cycle(cycle)
    text = [walked[n % len(walked)] for n in range(TEXT)]
    load = [np.bincount(layer.ravel(), minlength=EXPERTS).tolist() for layer in oracle.reference.routes(text)]
    due = {"one": [0] * (EXPERTS - ACTIVE) + [TEXT] * ACTIVE, "even": [TEXT * ACTIVE // EXPERTS] * EXPERTS}[
        cycle
    ]
    assert [sorted(counts) for counts in load] == [due] * 2
    check_prompt(client, oracle, text)
    prompt = text[:160]
    check_answer(oracle, prompt, client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1))


@catches("expert_lost", "requests_mixed_up")
def test_a_crowd_of_eight_is_as_exact_as_each_alone(client, oracle):
    asked = [words(oracle, 10 * n, seed=10 + n) for n in range(1, 9)]
    for at_once in (1, 8):
        replies = client.each(asked, at_once=at_once, max_tokens=ANSWER, temperature=0, logprobs=1)
        for prompt, reply in zip(asked, replies, strict=True):
            check_answer(oracle, prompt, reply)


@catches("stream_drops_logprobs", "done_missing")
def test_streamed_answers_are_the_same(client, oracle):
    prompt, ask = words(oracle, 20, seed=3), {"max_tokens": ANSWER, "temperature": 0, "logprobs": 1}
    whole, streamed = client.complete(prompt, **ask), client.complete(prompt, stream=True, **ask)
    assert stream.problems(streamed.exchange.events, "completion") == []
    assert stream.parity(whole, streamed) == []


@proves
@serve(model="fine", expert_parallel=True)
@catches("other_settings", "expert_lost", "router_rows_swapped")
def test_experts_kept_whole_give_what_split_ones_give(server, client, oracle):
    assert server.fact("expert_parallel") is True
    check_prompt(client, oracle, words(oracle, 200, seed=2))
    prompt = words(oracle, 20, seed=4)
    check_answer(oracle, prompt, client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1))


@proves
@serve(model="fine", all_to_all=each("own", "deepep"))
@catches("other_settings", "expert_lost", "requests_mixed_up")
def test_tokens_that_travel_to_their_experts_come_back_in_place(server, client, oracle):
    """vllm#21306, vllm#51824: the exchange hung, or read its own layout wrongly."""
    assert server.fact("all_to_all") == dict(server.spec.knobs)["all_to_all"]
    check_prompt(client, oracle, words(oracle, 200, seed=2))
    asked = [words(oracle, 20 + n, seed=40 + n) for n in range(8)]
    for prompt, reply in zip(
        asked, client.each(asked, at_once=8, max_tokens=ANSWER, temperature=0, logprobs=1), strict=True
    ):
        check_answer(oracle, prompt, reply)
