"""The shared expert computes every token, times its own gate, beside the experts that the router chose.

The shared model has one in each of two layers. Its share is known apart: the reference without it gives other
log-probabilities, by nats for most tokens.

That the shared expert runs on a stream of its own, or is split over ranks, cannot be told from outside.
"""

import numpy as np

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs, stream

pytestmark = [feature(7, "Shared experts"), serve(model="shared")]

TOLERANCE = 5e-4  # float32, derived in test_moe_kernels
SHARE = 0.1  # nats: two hundred times the tolerance
TEXT = 200
ANSWER = 24


def words(oracle, n, seed):
    """Return n words, none of which leads to an end."""
    return make.words(oracle, n, seed, avoid=oracle.path_to_eos)


def prompt_part(client, text):
    """Return the entries of a text's own tokens but the first."""
    reply = client.complete(text, max_tokens=1, temperature=0, echo=True, logprobs=1)
    return reply.choice.logprobs[1 : len(text)]


def check_answer(oracle, prompt, reply):
    """Judge the tokens of an answer, and their log-probabilities."""
    answer = oracle.greedy(prompt, ANSWER)
    right = oracle.answer_logprobs(prompt, answer)
    assert agree.problems(make.ids(oracle, reply.text), answer) == []
    assert logprobs.compare(reply.choice.logprobs, right, answer, TOLERANCE) == []


@proves
@catches("shared_expert_lost", "shared_gate_lost")
def test_the_architecture_has_a_shared_expert_and_its_share_is_seen(server, client, oracle):
    assert server.fact("architecture") == "Qwen2MoeForCausalLM"
    text = words(oracle, TEXT, seed=1)
    seen = np.array([entry.logprob for entry in prompt_part(client, text)])
    apart = oracle.reference.without(".shared_expert.").logprobs(text[:-1])
    share = np.abs(seen - apart[np.arange(TEXT - 1), text[1:]])
    assert np.mean(share > SHARE) > 0.8
    assert np.abs(seen - oracle.scored(text)).max() <= TOLERANCE


@catches(
    "shared_expert_lost",
    "shared_gate_lost",
    "expert_lost",
    "one_expert_less",
    "expert_weights_normalised_otherwise",
    "logprobs_off_by_1e-3",
)
def test_shared_and_routed_experts_add_up(client, oracle):
    text = words(oracle, TEXT, seed=2)
    routes = oracle.reference.routes(text)
    assert [set(layer.ravel().tolist()) for layer in routes] == [set(range(8))] * 2
    assert logprobs.compare(prompt_part(client, text), oracle.logprobs(text[:-1]), text[1:], TOLERANCE) == []


@catches("shared_expert_lost", "shared_gate_lost", "greedy_takes_the_second")
def test_greedy_answers_and_their_logprobs_are_exact(client, oracle):
    for seed in range(3):
        prompt = words(oracle, 20, seed)
        check_answer(oracle, prompt, client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1))


@catches("shared_gate_lost", "requests_mixed_up")
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
@serve(model="shared", shared_expert_fusion=each(False, True))
@catches("other_settings", "shared_expert_lost")
def test_a_shared_expert_computed_apart_or_as_a_routed_one_gives_the_same(server, client, oracle):
    assert server.fact("shared_expert_fusion") is dict(server.spec.knobs)["shared_expert_fusion"]
    text = words(oracle, TEXT, seed=2)
    assert logprobs.compare(prompt_part(client, text), oracle.logprobs(text[:-1]), text[1:], TOLERANCE) == []
