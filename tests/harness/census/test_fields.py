"""Routes and request classes made up here, in the two engines' manners."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pydantic import BaseModel, TypeAdapter

from fixtures.census import fields
from fixtures.census.archive import Source
from fixtures.errors import HarnessError

MUST = {
    "vllm/entrypoints/must.py": """
from pydantic import BaseModel
class Constraint(BaseModel):
    json: str
class ChatRequest(BaseModel):
    messages: list
    structured_outputs: Constraint
class TextRequest(BaseModel):
    prompt: str
@router.post("/v1/chat/completions")
async def chat(request: ChatRequest, raw: Request): ...
@router.post("/v1/completions")
async def text(request: TextRequest): ...
""",
    "sglang/srt/entrypoints/must.py": """
from pydantic import BaseModel
from sglang.srt.managers.io_struct import GenerateReqInput
class ChatRequest(BaseModel):
    messages: list
class TextRequest(BaseModel):
    prompt: str
@app.post("/v1/chat/completions")
async def chat(request: ChatRequest): ...
@app.post("/v1/completions")
async def text(request: TextRequest): ...
@app.api_route("/generate", methods=["POST", "PUT"])
async def generate(obj: GenerateReqInput, request: Request): ...
""",
    "sglang/srt/managers/io_struct.py": """
from dataclasses import dataclass
@dataclass
class GenerateReqInput:
    sampling_params: Optional[Union[list[dict], dict]] = None
""",
    "sglang/srt/sampling/sampling_params.py": """
class SamplingParams:
    def __init__(self, temperature: float = 1.0, stop: Optional[str] = None) -> None:
        self.temperature = temperature
""",
}


def rows(code="", engine="vllm", route="/ask", **modules):
    """Return what is found of a route, by field: of code that stands in a module of the server, and other modules."""
    files = {path: text for path, text in MUST.items() if path.startswith(engine)}
    folder = {"vllm": "vllm/entrypoints", "sglang": "sglang/srt/entrypoints"}[engine]
    files |= {f"{folder}/{name}.py": text for name, text in {"__init__": "", "ask": code, **modules}.items()}
    found = fields.rows(
        Source(engine, "1.0", "", "", "", {"METADATA": "", f"{engine}/__init__.py": "", **files})
    )
    return {name.partition(" ")[2]: facts for name, facts in found.items() if name.partition(" ")[0] == route}


def model(body, before="", base="BaseModel"):
    """Return a module with a request class of the given body, and its route."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"{before}\nclass Ask({base}):\n{lines}\n@router.post('/ask')\nasync def ask(request: Ask): ...\n"


class TestRoutes:
    @pytest.mark.parametrize(
        ("decorator", "parameter"),
        [
            ("@router.post('/ask')", "request: Ask"),
            ("@app.put('/ask', dependencies=[])", "raw: Request, request: Ask"),
            ("@app.api_route(path='/ask', methods=['POST'])", "obj: Optional[Ask] = None"),
            ("@app.post(os.environ.get('ROUTE', '/ask'))", "obj: Annotated[Ask, Body()]"),
            ("@app.post('/other')\n@with_cancellation\n@app.post('/ask')", "request: 'Ask'"),
        ],
    )
    def test_the_class_is_that_of_the_parameter(self, decorator, parameter):
        code = f"class Ask(BaseModel):\n    text: str\n{decorator}\ndef ask({parameter}): ...\n"
        assert rows(code)["text"] == {"type": "str"}

    def test_routes_made_within_a_function_count(self):
        code = "class Ask(BaseModel):\n    text: str\ndef attach(app):\n    @app.post('/ask')\n    def f(a: Ask): ..."
        assert "text" in rows(code)

    @pytest.mark.parametrize("decorator", ["@router.get('/ask')", "@router.post(route)", "@post"])
    def test_other_decorators_serve_no_body(self, decorator):
        code = "class Ask(BaseModel):\n    text: str\n@router.post('/other')\ndef other(request: Ask): ...\n"
        assert rows(f"{code}{decorator}\ndef ask(request: Ask): ...\n") == {}

    def test_a_class_may_come_from_another_module(self):
        code = "from vllm.entrypoints.protocol import Ask\n@router.post('/ask')\ndef ask(request: Ask): ..."
        assert rows(code, protocol="class Ask(BaseModel):\n    text: str")["text"] == {"type": "str"}

    def test_or_through_one(self):
        code = (
            "from vllm.entrypoints import protocol\n@router.post('/ask')\ndef ask(request: protocol.Ask): ..."
        )
        assert rows(code, protocol="class Ask(BaseModel):\n    text: str")["text"] == {"type": "str"}

    def test_where_a_route_takes_one_of_several_classes_all_fields_are_listed(self):
        code = (
            "class One(BaseModel):\n    text: str\n    kind: Literal['one'] = 'one'\n"
            "class Two(BaseModel):\n    model_config = ConfigDict(extra='forbid')\n"
            "    ids: list[int]\n    kind: Literal['two'] = 'two'\n"
            "Ask = Union[One, Two]\n@router.post('/ask')\ndef ask(request: Ask): ...\n"
        )
        assert rows(code) == {
            "*": {"extra": "ignore | forbid"},
            "ids": {"type": "list[int]"},
            "kind": {"type": "Literal['one'] | Literal['two']", "choices": ["one", "two"]},
            "text": {"type": "str"},
        }


class TestFields:
    @pytest.mark.parametrize(
        ("declared", "facts"),
        [
            ("n: int", {"type": "int"}),
            ("n: int | None = None", {"type": "int | None", "default": None}),
            ("n: float = -0.5", {"type": "float", "default": -0.5}),
            ("n: int = Field(3, ge=0)", {"type": "int", "default": 3}),
            ("n: int = Field(default=3)", {"type": "int", "default": 3}),
            ("n: int = Field(..., ge=0)", {"type": "int"}),
            ("n: list[str] = Field(default_factory=list)", {"type": "list[str]", "default": []}),
            ("n: str = Field(default_factory=make_id)", {"type": "str"}),
            ("n: int = field(default=3, init=True)", {"type": "int", "default": 3}),
            ("n: int = compute(3)", {"type": "int"}),
            ("n: int = LARGEST", {"type": "int", "default": 255}),
            ("n: Annotated[int, Field(ge=0)] = 1", {"type": "int", "default": 1}),
            (
                "n: Literal['a', 'b'] = 'a'",
                {"type": "Literal['a', 'b']", "default": "a", "choices": ["a", "b"]},
            ),
            ("n: Shape | None", {"type": "Shape | None", "choices": ["round", "square"]}),
            ("n: Literal['a'] | str", {"type": "Literal['a'] | str"}),
            (
                "n: dict[str, " + "list[" * 20 + "int" + "]" * 21,
                {"type": "dict[str, " + "list[" * 13 + "list…"},
            ),
        ],
    )
    def test_type_default_and_choices_are_read(self, declared, facts):
        before = "LARGEST = 2**8 - 1\nShape = Literal['round', 'square']"
        assert rows(model(declared, before))["n"] == facts

    @pytest.mark.parametrize("alias", ["alias='wire'", "validation_alias='wire', alias='other'"])
    def test_the_name_is_the_one_in_the_request(self, alias):
        assert [*rows(model(f"n: int = Field(1, {alias})"))] == ["*", "wire"]

    @pytest.mark.parametrize(
        "declared",
        [
            "_n: int = 0",
            "n: ClassVar[int] = 0",
            "n: InitVar[int]",
            "n: int = field(default=0, init=False)",
            "n = 3",
            "def n(self): ...",
        ],
    )
    def test_what_a_request_cannot_give_is_no_field(self, declared):
        assert [*rows(model(declared))] == ["*"]

    def test_fields_are_inherited_and_may_be_declared_anew(self):
        before = "class Base(BaseModel):\n    a: int\n    b: int\nclass Mixin:\n    c: int\n"
        found = rows(model("b: str", before, "Mixin, Base, Generic[T]"))
        assert {name: facts.get("type") for name, facts in found.items() if name != "*"} == {
            "a": "int",
            "b": "str",
            "c": "int",
        }

    def test_a_generic_base_hands_its_fields_on(self):
        before = "class Base(BaseModel, Generic[T]):\n    a: T\n"
        assert rows(model("b: str", before, "Base[int]"))["a"] == {"type": "T"}

    @pytest.mark.parametrize("base", ["BaseModel", "msgspec.Struct, kw_only=True", "TypedDict"])
    def test_classes_of_other_libraries_count(self, base):
        assert "n" in rows(model("n: int", base=base))

    def test_dataclasses_count_and_other_classes_do_not(self):
        code = "class Ask:\n    n: int\n@router.post('/ask')\ndef ask(request: Ask): ...\n"
        assert rows(code) == {}
        assert "n" in rows(f"@dataclass(kw_only=True)\n{code}")


class TestObjects:
    def test_fields_of_an_object_have_its_name_before_theirs(self):
        before = "class Inner(BaseModel):\n    x: int = 0\nclass Outer(BaseModel):\n    inner: Inner | None = None\n"
        found = rows(model("outer: Optional[Outer] = None\nmany: list[Inner]", before))
        assert [*found] == ["*", "many", "outer", "outer.*", "outer.inner", "outer.inner.*", "outer.inner.x"]
        assert found["outer.inner.x"] == {"type": "int", "default": 0}

    def test_an_object_of_several_kinds_has_the_fields_of_all(self):
        before = "class A(BaseModel):\n    a: int\nclass B(BaseModel):\n    b: int\nEither = A | B\n"
        assert {"of.a", "of.b"} <= {*rows(model("of: Either | None = None", before))}

    def test_a_class_that_holds_itself_ends(self):
        assert "of.of.of" in rows(model("of: Optional['Ask'] = None"))

    def test_sglang_makes_sampling_params_by_keyword(self):
        found = rows(engine="sglang", route="/generate")
        assert found == {
            "*": {"extra": "ignore"},
            "sampling_params": {"type": "Optional[Union[list[dict], dict]]", "default": None},
            "sampling_params.*": {"extra": "forbid"},
            "sampling_params.stop": {"type": "Optional[str]", "default": None},
            "sampling_params.temperature": {"type": "float", "default": 1.0},
        }


class TestUnknownFields:
    @pytest.mark.parametrize("extra", ["allow", "forbid", "ignore"])
    def test_the_configuration_of_a_class_or_its_base_says_it(self, extra):
        config = f"model_config = ConfigDict(extra='{extra}')"
        assert rows(model(config))["*"] == {"extra": extra}
        before = f"class Base(BaseModel):\n    {config}\n"
        assert rows(model("model_config = ConfigDict(strict=True)", before, "Base"))["*"] == {"extra": extra}

    def test_they_are_ignored_otherwise(self):
        assert rows(model("n: int"))["*"] == {"extra": "ignore"}
        assert rows(model("other = ConfigDict(extra='forbid')"))["*"] == {"extra": "ignore"}

    def test_pydantic_does_so_with_models_and_dataclasses(self):
        class Model(BaseModel):
            n: int = 0

        @dataclass
        class Data:
            n: int = 0

        assert Model.model_validate({"n": 1, "other": 2}) == Model(n=1)
        assert TypeAdapter(Data).validate_python({"n": 1, "other": 2}) == Data(1)


@pytest.mark.parametrize(
    ("engine", "path", "old", "new", "name"),
    [
        ("vllm", "vllm/entrypoints/must.py", "messages", "talk", "/v1/chat/completions messages"),
        (
            "vllm",
            "vllm/entrypoints/must.py",
            "json: str",
            "yaml: str",
            "/v1/chat/completions structured_outputs.json",
        ),
        (
            "sglang",
            "sglang/srt/sampling/sampling_params.py",
            "SamplingParams",
            "P",
            "/generate sampling_params.temperature",
        ),
    ],
)
def test_a_release_without_a_well_known_field_is_read_incompletely(monkeypatch, engine, path, old, new, name):
    monkeypatch.setitem(MUST, path, MUST[path].replace(old, new))
    with pytest.raises(HarnessError, match=rf"census of {engine} 1\.0 found no request field '{name}'"):
        rows(engine=engine)
