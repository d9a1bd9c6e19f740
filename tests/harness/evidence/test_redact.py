"""No secret passes the writer, in whatever spelling it comes, and what is written is still JSON."""

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fixtures.evidence import redact

# Brackets are what the replacement is made of: a secret with them could be spelled by a replacement and its neighbours.
SECRETS = st.text(st.characters(codec="utf-8", exclude_characters="[]\x00"), min_size=6, max_size=40)
AROUND = st.text(max_size=30)
SPELLINGS = {
    "plain": str,
    "json": lambda text: json.dumps(text)[1:-1],
    "json_unicode": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "json_in_json": lambda text: json.dumps(json.dumps({"a": text})),
    "repr": lambda text: repr([text]),
    "url": lambda text: quote(text, safe=""),
}


def hide(text, *values):
    return redact.text(text, redact.secrets({f"KEY_{n}_TOKEN": value for n, value in enumerate(values)}))


@pytest.mark.parametrize("spelling", SPELLINGS)
@given(before=AROUND, secret=SECRETS, after=AROUND)
def test_a_secret_of_the_environment_is_hidden_in_every_spelling(spelling, before, secret, after):
    assume(secret not in redact.HIDDEN)
    written = SPELLINGS[spelling](secret)
    assert written not in hide(f"{before}{written}{after}", secret)


@given(
    before=st.binary(max_size=7),
    secret=st.text("abcdefghijkLMNOPQ0123456789-_", min_size=12),
    after=st.binary(max_size=7),
)
def test_a_secret_within_base64_is_hidden(before, secret, after):
    whole = base64.b64encode(before + secret.encode() + after).decode()
    inner = base64.b64encode(b"\0" * (len(before) % 3) + secret.encode()).decode()
    core = inner[4 : len(inner) // 4 * 4 - 8]  # what does not depend on the neighbours
    assert core
    assert core not in hide(whole, secret)


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | AROUND,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(AROUND, inner, max_size=3),
    max_leaves=8,
)


@given(content=JSONISH, secret=SECRETS, place=st.sampled_from(["key", "value"]))
def test_json_stays_json_and_holds_no_secret(content, secret, place):
    assume(secret not in redact.HIDDEN)
    whole = {"content": content, **({secret: 1} if place == "key" else {"x": [f"a{secret}b"]})}
    hidden = redact.secrets({"MY_PASSWORD": secret})
    text = json.dumps(redact.value(whole, hidden))
    assert secret not in json.dumps(json.loads(text), ensure_ascii=False)
    assert json.dumps(secret)[1:-1] not in text


@pytest.mark.parametrize(
    "text",
    [
        "sk-proj-0123456789abcdef",
        "hf_AbCdEfGhIjKlMnOp",
        "ghp_0123456789abcdefghij",
        "AKIA0123456789ABCDEF",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdef",
        "Authorization: Bearer anything.at/all",
        '{"api_key": "whatever-it-is"}',
        "http://user:correct-horse@host/path",
        "https://host/?access_token=0123456789&x=1",
    ],
)
def test_what_looks_like_a_token_is_hidden_wherever_it_comes_from(text):
    told = redact.text(text, ())
    assert redact.HIDDEN in told
    assert not any(
        part in told for part in ("0123456789", "AbCdEf", "anything", "whatever", "correct-horse", "eyJ")
    )


@pytest.mark.parametrize(
    "text", ["task-0123456789", "tokens: 12", "w001w002", "max_tokens=128", "risk-averse people"]
)
def test_ordinary_words_stay(text):
    assert redact.text(text, ()) == text


def test_a_lone_surrogate_is_spelled_out():
    assert redact.value({"\ud800": ["a\udfffb"]}) == {"\\ud800": ["a\\udfffb"]}


def test_short_values_and_paths_are_no_secrets():
    assert redact.secrets({"A_KEY": "abc", "SSH_AUTH_SOCK": "/tmp", "NAME": "longer-than-six"}) == ()
    assert redact.secrets({"A_KEY": "abcdef", "b_token": "longer-one"}) == ("longer-one", "abcdef")
