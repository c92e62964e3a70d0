"""The pages in headless Chromium: offline, readable on a phone and in both themes, no dead link."""

import shutil

import pytest

from tests.experiments.report.example import make_site

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
PHONE, DESK = 390, 1200
A4 = 718  # CSS pixels between the margins of a printed page


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return make_site(tmp_path_factory.mktemp("site"))


class Visit:
    """One page, and what went wrong while it was open."""

    def __init__(self, browser, path):
        self.context = browser.new_context(color_scheme="light")
        self.problems: list[str] = []
        # A busy machine may leave the browser little time.
        self.context.set_default_timeout(120_000)
        self.page = self.context.new_page()
        self.page.on("console", lambda m: m.type == "error" and self.problems.append(m.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("requestfailed", lambda request: self.problems.append(request.url))
        self.page.on("request", self._local)
        self.page.goto(path.as_uri())

    def _local(self, request):
        if not request.url.startswith(("file:", "data:")):
            self.problems.append(f"external request {request.url}")

    def __enter__(self):
        return self.page, self.problems

    def __exit__(self, *_):
        self.context.close()


WCAG = ["wcag2a", "wcag2aa"]


def violations(page, rules=WCAG):
    """Violations that axe finds, by default of WCAG 2 A and AA: rule and first element."""
    options = {"runOnly": rules, "resultTypes": ["violations"]}
    found = axe.Axe().run(page, options=options).response["violations"]
    return [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in found]


def test_pages_are_whole_fit_the_screen_and_can_be_read(browser, pages):
    for path in pages:
        with Visit(browser, path) as (page, problems):
            broken = page.evaluate("[...document.images].filter(i => !i.naturalWidth).length")
            assert broken == 0, path
            page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            for width, media in ((A4, "print"), (PHONE, "screen"), (DESK, "screen")):
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(media=media)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert violations(page) == [], path
            page.emulate_media(color_scheme="dark")
            assert violations(page, ["color-contrast"]) == [], path
            assert problems == [], path


def test_a_phone_shows_published_here_and_verdict_without_scrolling(browser, pages):
    with Visit(browser, pages[0]) as (page, _):
        page.set_viewport_size({"width": PHONE, "height": 900})
        heads = page.locator("#nine ~ .scroll").first.locator("th").all()
        shown = [head.inner_text() for head in heads if head.is_visible()]
        assert shown == ["result", "published", "here, 95% interval", "agrees?"]
