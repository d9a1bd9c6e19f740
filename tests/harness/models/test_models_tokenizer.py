from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.models import RECIPES
from fixtures.models.tokenizer import ASSISTANT, BOS, DSML, EOS, HIDDEN, MARKERS, USER, Tokenizer

TOKENIZER = Tokenizer()
# Pieces that are likely to collide with merges and markers, between arbitrary text.
TEXTS = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(
            ["w", "w0", "w12", "w345", "w9999", "ww1", *MARKERS, *HIDDEN, "<thi", DSML[0], "\n", " "]
        ),
    ),
    max_size=12,
).map("".join)

THERE = """
import json, sys
from transformers import AutoTokenizer
job = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(job["path"])
json.dump({
    "size": len(tokenizer),
    "others": [AutoTokenizer.from_pretrained(path).encode(job["texts"][0]) for path in job["paths"]],
    "ids": [tokenizer.encode(text) for text in job["texts"]],
    "plain": [tokenizer.encode(text, add_special_tokens=False) for text in job["texts"]],
    "texts": [tokenizer.decode(ids) for ids in job["ids"]],
    "shown": [tokenizer.decode(ids, skip_special_tokens=True) for ids in job["ids"]],
    "chats": [
        [tokenizer.apply_chat_template(chat, add_generation_prompt=g, tokenize=True, return_dict=False)
         for g in (True, False)]
        for chat in job["chats"]
    ],
    "tools": tokenizer.apply_chat_template(job["tools"], tokenize=False),
    "eos": tokenizer.eos_token_id,
}, open(sys.argv[1], "w"))
"""


class TestRoundTrip:
    @given(TEXTS)
    def test_decoding_gives_the_text_back(self, text):
        assert TOKENIZER.decode(TOKENIZER.encode(text)) == text

    @given(st.lists(st.integers(0, 999), max_size=30))
    def test_a_text_of_words_has_one_token_a_word(self, numbers):
        text = "".join(f"w{n:03}" for n in numbers)
        assert TOKENIZER.encode(text) == [TOKENIZER.word(n) for n in numbers]

    def test_every_id_decodes_and_single_tokens_encode_to_themselves(self):
        assert TOKENIZER.size % 64 == 0
        assert sorted(TOKENIZER.vocab.values()) == list(range(TOKENIZER.size))
        ascii_and_longer = [*range(128), *range(256, TOKENIZER.size)]
        assert [TOKENIZER.encode(TOKENIZER.decode([n])) for n in ascii_and_longer] == [
            [n] for n in ascii_and_longer
        ]

    def test_hidden_tokens_can_be_left_out(self):
        ids = TOKENIZER.encode(f"{BOS}a<think>b{EOS}")
        assert TOKENIZER.decode(ids, skip_special=True) == "a<think>b"

    def test_an_unknown_id_is_an_error(self):
        with pytest.raises(IndexError):
            TOKENIZER.decode([TOKENIZER.size])


class TestChat:
    def test_the_prompt_ends_where_the_assistant_speaks(self):
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "w001"}]
        assert TOKENIZER.decode(TOKENIZER.chat(messages)) == f"{BOS}s{USER}w001{ASSISTANT}"
        assert TOKENIZER.decode(TOKENIZER.chat(messages, generate=False)) == f"{BOS}s{USER}w001"

    def test_past_answers_are_closed(self):
        messages = [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "t"}]
        assert TOKENIZER.decode(TOKENIZER.chat(messages)) == f"{BOS}{ASSISTANT}a{EOS}{USER}t{ASSISTANT}"


class TestAgreementWithTheLibrary:
    def test_encoding_decoding_and_chat_are_those_of_the_library(self, oracle, in_engine):
        draw = random.Random(7)
        alphabet = [
            "w",
            "0",
            "7",
            "12",
            "w345",
            "é",
            "\uff57",
            "𝄞",
            " ",
            "\n",
            "\t",
            "<",
            "think>",
            *MARKERS,
            *HIDDEN,
        ]
        texts = [f"w001w002 é{BOS}"]
        texts += ["".join(draw.choices(alphabet, k=draw.randrange(12))) for _ in range(300)]
        texts += [chr(n) * 2 for n in range(1, 0x300)]
        ids = [[draw.randrange(TOKENIZER.size) for _ in range(draw.randrange(1, 12))] for _ in range(300)]
        ids += [[draw.randrange(256) for _ in range(6)] for _ in range(300)]
        ids += [[n] for n in range(TOKENIZER.size)]
        roles = ("system", "user", "assistant", "tool")
        chats = [[{"role": r, "content": f"w{n:03} {r}"} for n, r in enumerate(roles)]]
        chats += [
            [{"role": draw.choice(roles), "content": draw.choice(texts)} for _ in range(4)] for _ in range(20)
        ]
        call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
        tools = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
        path = str(oracle("chain").path)
        paths = [str(oracle(name).path) for name in RECIPES]
        job = {"path": path, "paths": paths, "texts": texts, "ids": ids, "chats": chats, "tools": tools}
        there = in_engine(THERE, job)
        assert there["size"] == TOKENIZER.size
        # transformers chooses the class of a tokenizer by the type of the model beside it.
        assert there["others"] == [TOKENIZER.encode(texts[0])] * len(RECIPES)
        assert there["eos"] == TOKENIZER.eos
        assert there["ids"] == there["plain"] == [TOKENIZER.encode(text) for text in texts]
        assert there["texts"] == [TOKENIZER.decode(one) for one in ids]
        assert there["shown"] == [TOKENIZER.decode(one, skip_special=True) for one in ids]
        assert there["chats"] == [[TOKENIZER.chat(c), TOKENIZER.chat(c, generate=False)] for c in chats]
        assert there["tools"].startswith(f"{BOS}{USER}go{ASSISTANT}[")
        assert '"name": "f"' in there["tools"]
