"""The page in a real browser, without a network and without a mouse."""

import re
import shutil

import pytest
from playwright import sync_api

NAMES = ("chromium", "chromium-browser", "google-chrome")
# The ratio of contrast between the text of an element and what lies behind it (WCAG 2).
RATIO = """one => {
    const numbers = text => text.match(/[\\d.]+/g).map(Number);
    const light = text => {
        const [r, g, b] = numbers(text).slice(0, 3)
            .map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    let behind = one;
    while (behind && (numbers(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
    const pair = [light(getComputedStyle(one).color), light(getComputedStyle(behind).backgroundColor)].sort();
    const [low, high] = pair[0] < pair[1] ? pair : [pair[1], pair[0]];
    return [one.outerHTML.slice(0, 120), (high + 0.05) / (low + 0.05)];
}"""
CELL = "cell-25a-sglang-0.5.20"  # of the sample: a failure with evidence


@pytest.fixture(scope="module")
def chromium():
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail(f"none of {', '.join(NAMES)} is on the PATH: run `apt-get install chromium`")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium, page_file, request):
    """Open the page; it must load nothing else, and the console must stay empty."""
    options = {"viewport": {"width": 1280, "height": 900}, **getattr(request, "param", {})}
    context = chromium.new_context(**options, offline=True)
    page = context.new_page()
    address, asked, said = page_file.as_uri(), [], []

    def only_the_page(route):
        asked.append(route.request.url)
        route.continue_() if route.request.url == address else route.abort()

    page.route("**/*", only_the_page)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    yield page
    assert (asked, said) == ([address], [])
    context.close()


PHONE = {"viewport": {"width": 360, "height": 740}}


def test_the_keyboard_leads_from_a_cell_to_its_evidence_and_back(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the matrix"
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == f"to-{CELL}":
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert (page.evaluate("document.activeElement.id"), outline) == (f"to-{CELL}", "solid")
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector(':target').id") == CELL
    sync_api.expect(page.locator(f"#{CELL}".replace(".", "\\."))).to_be_in_viewport()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "back"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    detail = page.locator(":target details.test[open] pre")
    sync_api.expect(detail).to_contain_text("assert 512 == 0")
    links = page.locator(":target details.test[open] dd a")
    assert links.evaluate_all("found => found.map(one => one.getAttribute('href'))") == [
        f"./evidence/salts-keep-tenants-apart/{name}"
        for name in ("exchanges.jsonl", "server.log", "test.json")
    ]
    page.locator(":target .back").press("Enter")
    assert page.evaluate("document.querySelector(':target').id") == f"to-{CELL}"


@pytest.mark.parametrize("page", [PHONE], indirect=True)
def test_a_phone_needs_no_sideways_scrolling(page):
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    beyond = """found => found.filter(one => !one.closest('.scroll')
        && one.getBoundingClientRect().right > 361).map(one => one.outerHTML.slice(0, 200))"""
    assert page.locator("body *:not(.skip)").evaluate_all(beyond) == []
    assert page.locator(".matrix").evaluate("one => one.scrollWidth") <= 360


@pytest.mark.parametrize("page", [{"color_scheme": "dark"}], indirect=True, ids=["dark"])
def test_paper_shows_what_is_closed_on_the_screen_and_is_white(page):
    detail = page.locator("details.test pre").first
    assert not detail.is_visible()
    page.emulate_media(media="print")
    assert detail.is_visible()
    assert page.locator("details.rest table").first.is_visible()
    assert not page.locator("nav").is_visible()
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 less the margins
    assert page.locator(".cell").first.evaluate("one => one.getBoundingClientRect().right") <= 718
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    found = page.locator("p, code, td, .state").evaluate_all(f"found => found.map({RATIO})")
    assert [one for one in found if one[1] < 4.5] == []


SCHEMES = [{"color_scheme": scheme} for scheme in ("light", "dark")]


@pytest.mark.parametrize("page", SCHEMES, indirect=True, ids=["light", "dark"])
def test_states_remarks_and_links_can_be_read(page):
    page.goto(page.url + f"#{CELL}")
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    shown = ".state, .matrix td > *, .matrix td small, small, .soft, a, dt, th, pre, .warning, .kills td, svg text"
    found = page.locator(shown).evaluate_all(f"found => found.map({RATIO})")
    states = {state for text, _ in found for state in re.findall(r'^<span class="state (\w+)', text)}
    assert states == {"error", "fail", "inconclusive", "flaky", "known", "pass", "not_applicable"}
    assert [one for one in found if one[1] < 4.5] == []


def test_headers_and_plots_have_their_names(page):
    assert page.locator("thead th:not([scope]), tbody th:not([scope])").count() == 0
    plots = page.locator("svg")
    assert plots.count() > 6
    for name in plots.evaluate_all("found => found.map(one => one.getAttribute('aria-labelledby'))"):
        assert page.locator(f"#{name.split()[0]}").text_content()
    assert page.locator("h1").count() == 1
    assert page.title() == "error: DeepSeek V4 Flash conformance"
