"""Small exchanges as each engine has them: requests, and the answers of an engine that has no fault."""

import json
import re
from dataclasses import dataclass, field

from fixtures.engines.rules import Catalog
from fixtures.faux.scene import Answer, Ask, Scene
from fixtures.judge import stream
from fixtures.model import Event, Exchange
from fixtures.models.tokenizer import Tokenizer

CATALOGS = {
    "vllm": Catalog.bound("vllm", "0.32.0", "cpu"),
    "sglang": Catalog.bound("sglang", "0.5.20", "cpu"),
}
TOKENIZER = Tokenizer()
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RECORD = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 3}, "y": {"type": "string"}}}
SPOKEN = '{"x":5,"y":"abc"}'


def words(*numbers):
    return [f"w{n:03}" for n in numbers]


def prompt(*numbers):
    return [TOKENIZER.word(n) for n in numbers]


@dataclass
class Dialect:
    """Writes answers as one engine does."""

    catalog: Catalog
    seen: list = field(default_factory=list)

    @property
    def is_vllm(self):
        return self.catalog.engine == "vllm"

    def complete(self, tokens, *, finish="length", cached=0, per_chunk=1, hidden=(), **ask):
        """A completion of these tokens; `hidden` ones end it and are not shown."""
        body = {"model": "oracle", "prompt": prompt(*range(380)), "max_tokens": 99, "temperature": 0, **ask}
        return self._exchange(Ask("POST", COMPLETIONS, body), tokens, finish, cached, per_chunk, list(hidden))

    def chat(self, tokens, *, finish="length", cached=0, per_chunk=1, **ask):
        """A chat answer of these tokens."""
        messages = [{"role": "user", "content": "w001w002"}]
        body = {"model": "oracle", "messages": messages, "temperature": 0, **ask}
        return self._exchange(Ask("POST", CHAT, body), tokens, finish, cached, per_chunk, [])

    def _exchange(self, ask, tokens, finish, cached, per_chunk, hidden):
        chat, body = ask.path == CHAT, ask.body
        asked = 6 if chat else len(body["prompt"])
        echoed = [TOKENIZER.decode([n]) for n in body["prompt"]] if body.get("echo") else []
        usage = {
            "prompt_tokens": asked,
            "completion_tokens": len(tokens) + len(hidden),
            "total_tokens": asked + len(tokens) + len(hidden),
        }
        if cached or self.is_vllm:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        name = "chat.completion" if chat else "text_completion"
        head = {"id": "c-1", "object": name, "created": 1, "model": "oracle"}
        more = {} if self.is_vllm else {"sglext": {"spec_tokens_details": self.details(len(tokens))}}
        if not body.get("stream"):
            choices = [
                self._choice(ask, [*echoed, *tokens, *hidden], len(echoed), len(hidden), finish, 0, n)
                for n in range(body.get("n", 1))
            ]
            return ask, Answer(body=json.dumps({**head, "choices": choices, "usage": usage, **more}))
        head["object"] = "chat.completion.chunk" if chat else name
        parts = [tokens[n : n + per_chunk] for n in range(0, len(tokens), per_chunk)]
        chunks = [
            self._choice(
                ask,
                part,
                0,
                0,
                finish if n == len(parts) - 1 else None,
                len("".join(tokens[: n * per_chunk])),
            )
            for n, part in enumerate(parts)
        ]
        if chat:
            role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            chunks.insert(0, role)
        texts = [json.dumps({**head, "choices": [chunk]}) for chunk in chunks]
        texts += [json.dumps({**head, "choices": [], **more})] if more else []
        texts += [json.dumps({**head, "choices": [], "usage": usage}), "[DONE]"]
        return ask, Answer(kind="text/event-stream", events=tuple((0.01, text) for text in texts))

    def _choice(self, ask, tokens, echoed, hidden, finish, offset, index=0):
        chat, body = ask.path == CHAT, ask.body
        text = "".join(tokens[: len(tokens) - hidden])
        choice = {"index": index, "finish_reason": finish, "logprobs": None}
        part = {"content": text} if body.get("stream") else {"role": "assistant", "content": text}
        choice |= {"delta" if body.get("stream") else "message": part} if chat else {"text": text}
        if body.get("return_token_ids"):
            choice["token_ids"] = [TOKENIZER.vocab[token] for token in tokens[echoed:]]
        if body.get("logprobs") is None or body.get("logprobs") is False:
            return choice
        numbers = [
            -0.01 * (n + 1 + offset) - TOKENIZER.encode(token)[0] / 1e5 for n, token in enumerate(tokens)
        ]
        tops = [
            {token: number, "w999": -6 - number, "w998": -7 - number}
            for token, number in zip(tokens, numbers, strict=True)
        ]
        if chat:
            content = [
                {"token": token, "logprob": number, "bytes": list(token.encode()), "top_logprobs": [
                    {"token": one, "logprob": value, "bytes": list(one.encode())} for one, value in top.items()
                ]}
                for token, number, top in zip(tokens, numbers, tops, strict=True)
            ]  # fmt: skip
            return {**choice, "logprobs": {"content": content}}
        offsets = [offset + len("".join(tokens[:n])) if self.is_vllm else -1 for n in range(len(tokens))]
        lists = {"tokens": tokens, "token_logprobs": numbers, "top_logprobs": tops, "text_offset": offsets}
        if echoed:
            lists |= {"token_logprobs": [None, *numbers[1:]], "top_logprobs": [None, *tops[1:]]}
        return {**choice, "logprobs": lists}

    def details(self, tokens):
        """As many right drafts as can be with three a step, in the last step two."""
        return {
            "spec_num_proposed_drafts": 3 * (tokens // 4 + 1),
            "spec_num_correct_drafts": 3 * (tokens // 4) + 2,
            "spec_correct_drafts_histogram": [0, 0, 1, tokens // 4],
        }

    def page(self, count):
        """The page of counters after that many requests."""
        values = {
            "finished_requests": count,
            "prompt_tokens": 300 * count,
            "generated_tokens": 8 * count,
            "prefix_hits": 128 * count,
            "external_hits": 64 * count,
            "draft_steps": 4 * count,
            "drafted_tokens": 12 * count,
            "accepted_tokens": 8 * count,
            "kv_usage": 0,
        }
        lines = ["# TYPE other_total counter", 'other_total{engine="0"} 7.0']
        for name, value in values.items():
            if name in self.catalog.table["metrics"]:
                lines.append(f'{self.catalog.metric(name)}{{engine="0",model_name="oracle"}} {value}.0')
        if self.is_vllm:
            name = self.catalog.metric("accepted_tokens_position")
            lines += [
                f'{name}{{engine="0",position="{n}"}} {places * count}.0'
                for n, places in enumerate((4, 3, 1))
            ]
            lines.append(
                'vllm:cache_config_info{block_size="128",cache_dtype="fp8",enable_prefix_caching="True",'
                'kv_cache_size_tokens="2176"} 1.0'
            )
        return Ask("GET", "/metrics"), Answer(kind="text/plain", body="\n".join(lines) + "\n")

    def info(self):
        said = {"page_size": 1, "max_total_tokens": 2176, "kv_cache_dtype": "fp8_e4m3"}
        for name, value in (
            ("grammar", "xgrammar"),
            ("quantization", "fp8"),
            ("moe_backend", "auto"),
            ("reasoning", "deepseek_r1"),
        ):
            *folders, leaf = self.catalog.fact(name)["info"].split(".")
            place = said
            for folder in folders:
                place = place.setdefault(folder, {})
            place[leaf] = value
        return Ask("GET", self.catalog.call("info")["path"]), Answer(body=json.dumps(said))

    def reset(self):
        call = self.catalog.call("reset_prefix_cache")
        return Ask(call["method"], call["path"]), Answer(body='{"success":true}')

    def refusal(self, status=400, **ask):
        error = {"message": "no such grammar", "type": "BadRequestError", "param": None, "code": status}
        body = {"error": error} if self.is_vllm else {"object": "error", **error}
        asked, _ = self.complete([], **ask)
        return asked, Answer(status=status, body=json.dumps(body))

    def held(self, pattern):
        """The request field of a regular expression."""
        path = self.catalog.field("regex")["path"]
        return {"structured_outputs": {"regex": pattern}} if "." in path else {path: pattern}

    def conversation(self):
        """All kinds of exchanges, in an order in which each fault has something to do."""
        return [self.page(0), self.info(), *self._prompts(), *self._forms(), *self._constraints(), self.page(12),
                self.reset(), self._from_a_tier(), *self._crowd(), self.page(20)]  # fmt: skip

    def _prompts(self):
        eight, block = words(*range(1, 9)), 128 if self.is_vllm else 1
        all_told = {"logprobs": 2, "return_token_ids": True}
        branch = prompt(*range(200), *range(500, 600))
        deeper = prompt(*range(380), *range(1, 9), 900)
        return [
            self.complete(eight, **all_told),
            self.complete(eight, cached=379 // block * block, **all_told),
            self.complete(eight, prompt=branch, cached=200 // block * block),
            self.complete(words(9, 10), prompt=deeper, cached=387 // block * block),
            self.complete(words(5), prompt=prompt(1, 2, 3), echo=True, logprobs=1),
            self.complete(words(6), prompt=prompt(4, 7, 8, 9), echo=True, logprobs=1),
            self.complete(words(6), n=2, temperature=2.0, seed=1, top_k=3, top_p=0.5, **all_told),
            self.complete(eight, cache_salt="a", frequency_penalty=2.0, presence_penalty=1.0),
        ]

    def _forms(self):
        eight, told = words(*range(1, 9)), {"logprobs": True, "top_logprobs": 2}
        return [
            self.complete(words(7), stop="w008", finish="stop"),
            self.chat(eight, max_tokens=8, **told),
            self.chat(eight, stream=True, per_chunk=2, **told),
            self.complete(eight, stream=True, per_chunk=3, logprobs=2, return_token_ids=True),
            self.complete(["是", "w001"], stream=True),
        ]

    def _constraints(self):
        schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": RECORD}}
        two = {"finish": "stop", **self.held("(w[0-9]{3}){2}")}
        return [
            self.complete(list(SPOKEN), response_format=schema, finish="stop"),
            self.chat(list(SPOKEN), response_format=schema, finish="stop"),
            self.complete(words(1, 2), stream=True, **two),
            self.complete(words(1, 2), **two),
            self.complete(words(3, 4), guided_regex="w.*"),
            self.refusal(**self.held("[a")),
            self._thought(),
        ]

    def _thought(self):
        """A chat answer that a parser has parted from what was thought before."""
        ask, answer = self.chat(words(1, 2))
        body = json.loads(answer.body)
        body["choices"][0]["message"]["reasoning" if self.is_vllm else "reasoning_content"] = "w005w006"
        return ask, answer.but(body=json.dumps(body))

    def _from_a_tier(self):
        """A prompt that the cache has just lost, and that was taken all the same."""
        block = 128 if self.is_vllm else 1
        return self.complete(words(*range(1, 9)), cached=379 // block * block)

    def _crowd(self):
        """More prompts than the suite's small cache has room for, then the first one again."""
        far = [prompt(*range(n, n + 300)) for n in (300, 600)]
        return [self.complete(words(*range(1, 9)), prompt=far[n % 2]) for n in range(9)]


def play(fault, catalog, exchanges):
    """What a proxy would do: return, for each exchange, what is asked and what is seen."""
    history, told = (), []
    for ask, answer in exchanges:
        asked = fault.ask(Scene(catalog, history), ask)
        if isinstance(asked, Answer):
            told.append((None, asked))
            continue
        told.append((asked, fault.answer(Scene(catalog, history), ask, answer)))
        history = (*history, (ask, answer))
    return told


def reply(ask, answer):
    """The answer as the suite's client reads it."""
    events = tuple(Event(float(n), data) for n, (_, data) in enumerate(answer.events))
    return stream.assemble(Exchange(ask.method, ask.path, ask.body, answer.status, answer.body, events, 0, 0))


def value(page, name, **labels):
    """One number of a page of counters."""
    want = "".join(rf'(?=.*{key}="{text}")' for key, text in labels.items())
    return float(re.search(rf"^{re.escape(name)}{want}\S* (\S+)$", page.body, re.MULTILINE)[1])
