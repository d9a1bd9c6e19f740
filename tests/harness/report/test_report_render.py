"""Whatever an engine or a test says, the reports show it as text."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.evidence.results import Feature, Kill
from fixtures.report import render, safe, terminal
from tests.harness.report.hostile import EVIL, hostile
from tests.harness.report.values import VLLM, result, small

VOID = {"meta", "link", "br", "img"}


class Page(HTMLParser):
    """Checks that tags are nested as they must, and collects what a page would do."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.ids, self.text = [], set(), [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def check(text):
    """Check that a page is well-formed, runs nothing and loads nothing. Return it."""
    page = Page(text)
    assert page.tags.isdisjoint({"script", "iframe", "object", "embed", "img", "form", "base", "image", "h5"})
    assert len(page.ids) == len(set(page.ids))
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in {"src", "srcset", "data", "action", "formaction", "background"}
        if name in {"href", "xlink:href"}:
            anchor = r"#[^\s]*|\./[\w./%~-]*|https://[\w.-]+/[\w./#-]+"
            assert re.fullmatch(anchor if tag == "a" else "#.*|data:,", value, re.ASCII), (tag, value)
        if name in {"href", "xlink:href"} and value.startswith("#"):
            assert value[1:] in page.ids
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert ("meta", "content", policy) in page.attributes
    assert text.index("Content-Security-Policy") < text.index("<style>")
    assert "url(http" not in text
    assert "@import" not in text
    text.encode()
    return page


class TestHostileText:
    @pytest.mark.parametrize("kind", EVIL)
    def test_a_page_shows_it_and_does_nothing_else(self, kind, tmp_path):
        text = EVIL[kind]
        page = check(render.html(hostile(text), tmp_path))
        assert safe.clean(text).split("\n")[0] in "".join(page.text)
        assert not re.search(r"[\0\x1b\x9b\u202a-\u202e\u2066-\u2069]", "".join(page.text))

    @settings(max_examples=10, deadline=None)
    @given(st.text(alphabet=st.characters(), max_size=40))
    def test_any_text_gives_a_page_a_summary_and_a_view(self, text):
        check(render.html(hostile(text), None))
        render.markdown(hostile(text)).encode()
        terminal.text(hostile(text), 80, colour=True).encode()

    def test_a_megabyte_is_cut_with_a_word_about_it(self):
        long = "x<" * 500_000
        told = small(result(state="fail", detail=long, sentence=long, test=f"features/test_x.py::{long}"))
        page = render.html(told, None)
        assert len(page) < 300_000
        assert "980000 more characters are in results.json" in page
        assert len(render.markdown(told)) < 5_000
        assert len(terminal.text(told, 80, colour=False)) < 5_000


class TestLinks:
    @pytest.mark.parametrize(
        ("link", "address"),
        [
            ("vllm-project/vllm#12131", "https://github.com/vllm-project/vllm/issues/12131"),
            (
                "https://github.com/mlc-ai/xgrammar/issues/800",
                "https://github.com/mlc-ai/xgrammar/issues/800",
            ),
            ("https://github.com/a/b/pull/5#issuecomment-7", "https://github.com/a/b/pull/5#issuecomment-7"),
            ("https://gitlab.com/a/b/-/issues/5", "https://gitlab.com/a/b/-/issues/5"),
            ("http://github.com/a/b/issues/1", None),
            ("https://user@github.com/a/b/issues/1", None),
            ("https://evil.example/phish", None),
            ("https://github.com/a/b/issues/1\njavascript:alert(1)", None),
            ('https://github.com/a/b/issues/1"onclick=', None),
            ("javascript:alert(1)", None),
            ("a/b#1\n", None),
            ("", None),
        ],
    )
    def test_upstream(self, link, address):
        assert safe.upstream(link) == address

    @pytest.mark.parametrize(
        ("path", "link"),
        [
            ("evidence/a b", "./evidence/a%20b"),
            ("javascript:alert(1)", "./javascript%3Aalert%281%29"),
            ("../evidence", None),
            ("a/../../b", None),
            ("/etc", None),
            ("//evil.example/x", None),
            ("a\\..\\b", None),
            ("a\0b", None),
            ("", None),
            (".", None),
        ],
    )
    def test_below_the_report(self, path, link):
        assert safe.relative(path) == link

    def test_kept_files_are_listed_and_nothing_outside(self, tmp_path):
        base, outside = tmp_path / "base", tmp_path / "outside"
        for folder in (base / "evidence" / "one", outside):
            folder.mkdir(parents=True)
            (folder / "server #1.log").write_text("")
        (base / "way-out").symlink_to(outside)
        assert safe.files("evidence/one", base) == (("server #1.log", "./evidence/one/server%20%231.log"),)
        assert (
            safe.files("way-out", base) == safe.files("missing", base) == safe.files("../outside", base) == ()
        )
        assert safe.files("evidence/one", None) == (("evidence/one", "./evidence/one/"),)


class TestPage:
    def test_the_sample_is_a_sound_page(self, page_file):
        text = page_file.read_text(encoding="utf-8")
        page = check(text)
        assert 'id="cell-25a-sglang-0.5.20"' in text
        assert "./evidence/engine-died/server.log" in text
        assert "one of 4 runs was cut off after" in text
        assert page.tags >= {"svg", "table", "details", "figure"}

    def test_the_same_results_give_the_same_page(self):
        told = hostile("same")
        assert render.html(told, None) == render.html(told, None)

    def test_a_fake_engine_is_called_fake_where_it_is_named(self):
        engine = VLLM.model_copy(update={"fake": True, "label": "the fake engine"})
        told = small(result(), engines=(engine,))
        for text in (render.html(told, None), render.markdown(told)):
            assert "vLLM (fake)" in text.replace("\\", "")
            assert "says nothing about an engine" in text
        assert "vLLM 0.32.0 (fake)" in terminal.text(told, 80, colour=False)

    def test_nothing_at_all_is_a_page_too(self):
        check(render.html(small(), None))
        assert "No test has a result" in render.markdown(small())
        assert "No test has a result" in terminal.text(small(), 80, colour=False)


class TestMarkdown:
    @pytest.mark.parametrize("kind", EVIL)
    def test_no_text_is_markup(self, kind):
        text = EVIL[kind]
        told = small(
            result(state="fail", sentence=text, link=text, item=text, feature=Feature(number="1", title=text))
        )
        shown = re.sub(r"`[^`\n]*`", "", render.markdown(told))
        # The summary's own: the guides' claims are folded away.
        shown = re.sub(r"^(<details><summary>)(.*)</summary>$|^</details>$", r"\2", shown, flags=re.MULTILINE)
        assert not re.search(r"(?<!\\)[<>]|[@#](?=\w)|://(?!\u200b)|\bwww\.\w|\bGH-\d", shown)
        (row,) = [line for line in shown.splitlines() if line.startswith("| 1 ")]
        assert len(re.findall(r"(?<!\\)\|", row)) == 3

    def test_known_failures_have_their_link(self):
        text = render.markdown(small(result(state="known", link="vllm-project/vllm#12131")))
        assert "](https://github.com/vllm-project/vllm/issues/12131)" in text

    def test_it_is_cut_before_it_is_too_long_for_github(self):
        told = small(*(result(state="fail", item=str(place), sentence="ü€" * 300) for place in range(1200)))
        text = render.markdown(told)
        assert len(text.encode()) <= 1024 * 1024
        assert text.endswith("The whole is in results.json.\n")
        assert text.count("\n- ") > 300

    def test_the_share_of_noticed_faults_is_told(self):
        kills = [
            Kill(test="t.py::a", engine="vllm", fault=f, state=s)
            for f, s in (("x", "noticed"), ("y", "survived"))
        ]
        assert "50 %" in render.markdown(small(kills=kills))
