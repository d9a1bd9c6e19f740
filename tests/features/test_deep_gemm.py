"""DeepGEMM's block-scaled products, with scales that are powers of two, give V4's known answers.

Not proved: which product used which kernel; only that the engine says that it uses DeepGEMM with E8M0 scales.
"""

import pytest

from fixtures import catches, each, feature, proves, serve
from fixtures import prompts as make
from fixtures.judge import agree, logprobs

pytestmark = [feature(4, "DeepGEMM E8M0"), serve(model="v4", deep_gemm=each(True, False))]

ANSWER = 16
TOLERANCE = 0.1  # bfloat16 streams, as in test_mhc_fusion


@proves
@catches("kernels_not_chosen")
def test_the_products_are_made_as_asked(server):
    assert server.fact("deep_gemm") is dict(server.spec.knobs)["deep_gemm"]


@catches("greedy_takes_the_second", "logprobs_off_by_0.2")
@pytest.mark.parametrize("length", [2, 63, 64, 65, 128, 129, 513])
def test_answers_are_known_for_all_numbers_of_rows(client, oracle, length):
    """Rows are padded to the kernel's tile: one more than a tile is where scales are read from the wrong row."""
    prompt = make.walk(oracle, "always", length)
    answer = oracle.greedy(prompt, ANSWER)
    choice = client.complete(prompt, max_tokens=ANSWER, temperature=0, logprobs=1).choice
    right = oracle.answer_logprobs(prompt, answer)
    assert agree.problems(make.ids(oracle, choice.text), answer) == []
    assert logprobs.compare(choice.logprobs, right, answer, TOLERANCE) == []


@catches("requests_mixed_up")
def test_the_first_requests_of_a_server_are_served_at_once(client, oracle):
    """sglang#35388: the first request ended the server, since scales were of another format."""
    asked = [make.words(oracle, 7 + 31 * n, seed=n, avoid=oracle.path_to_eos) for n in range(12)]
    replies = client.each(asked, at_once=12, max_tokens=ANSWER, temperature=0)
    for prompt, reply in zip(asked, replies, strict=True):
        assert agree.problems(make.ids(oracle, reply.text), oracle.greedy(prompt, ANSWER)) == []
