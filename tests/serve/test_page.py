"""The page of `osscl serve` in a real browser, on a desk and on a phone, in light and dark."""

import base64
import shutil

import pytest

from serve.conftest import running

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 90_000  # milliseconds, on a busy machine
SCREENS = {"desk": (1200, 900, "light"), "phone": (390, 844, "dark")}
MAKE_FILES = """(files) => {
  const made = new DataTransfer();
  for (const [name, text] of files)
    made.items.add(new File([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], name));
  return made;
}"""


@pytest.fixture
def address(server_state):
    from osscl.serve.app import build_app
    from osscl.serve.guard import Access

    with running(build_app(server_state, Access("127.0.0.1"))) as url:
        yield url


@pytest.fixture
def browser():
    api = pytest.importorskip("playwright.sync_api")
    if PROGRAM is None:
        pytest.skip("no chromium is installed")
    with api.sync_playwright() as started:
        made = started.chromium.launch(
            executable_path=PROGRAM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]
        )
        yield made
        made.close()


@pytest.fixture
def open_page(browser, address):
    """Open the page on a screen; what a person would see in red in the console fails the test."""
    wrong, contexts = [], []

    def opened(screen, scheme=None):
        width, height, default = SCREENS[screen]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme or default, has_touch=screen == "phone"
        )
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("console", lambda told: wrong.append(told.text) if told.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith((address, "data:")) else wrong.append(asked.url))
        page.goto(address)
        contexts.append(context)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [one for one in wrong if "status of 409" not in one] == []  # browsers report every refused request


def drop(page, *paths):
    files = [(path.name, base64.b64encode(path.read_bytes()).decode()) for path in paths]
    page.dispatch_event(".drop", "drop", {"dataTransfer": page.evaluate_handle(MAKE_FILES, files)})


def go_to(page, name):
    page.get_by_role("navigation").get_by_role("link", name=name).click()


def is_within_the_screen(page):
    return page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("screen", [*SCREENS])
def test_a_person_asks_names_teaches_sees_goes_back_and_renames(open_page, screen, photos):
    page = open_page(screen)
    drop(page, photos / "test" / "fish" / "000.jpg", photos / "test" / "umbrella" / "000.jpg")
    page.get_by_text("Something new").wait_for()
    fish = page.locator(".answer").filter(has_text="000.jpg").filter(has=page.locator(".badge.good"))
    assert fish.locator(".title strong").inner_text() == "fish" and fish.locator(".nearest img").count() == 3
    assert is_within_the_screen(page)

    go_to(page, "Pile")
    page.get_by_role("link", name="Group 2").click()
    page.locator(".tile").first.wait_for()
    count = page.locator(".tile").count()
    page.locator(".tile label").first.click()  # left out
    assert f"{count - 1} of {count} selected" in page.locator(".tools").inner_text()
    assert is_within_the_screen(page)
    page.get_by_label("They show").fill("<b>balloon</b>")
    page.get_by_role("button", name="Teach now").click()
    page.locator("#dock progress").wait_for()
    page.get_by_text("Taught.").wait_for()
    page.get_by_role("link", name="What changed").click()
    page.get_by_role("heading", name="Pictures whose answer changed").wait_for()
    assert "class means" in page.locator(".figures").inner_text()

    go_to(page, "Learned")
    page.get_by_role("heading", name="<b>balloon</b>").wait_for()
    assert is_within_the_screen(page)
    page.get_by_role("button", name="Go back to step 2").click()
    page.get_by_role("heading", name="<b>balloon</b>").wait_for(state="detached")
    page.get_by_role("button", name="Rename boat").click()
    page.get_by_label("New name").fill("ship")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    page.get_by_role("heading", name="ship").wait_for()


def test_a_wrong_answer_becomes_a_label_and_a_second_page_shows_that_teaching_runs(open_page, photos, server_state):
    page, other = open_page("desk"), open_page("phone", "light")
    page.set_input_files("#files", photos / "test" / "umbrella" / "000.jpg")
    page.get_by_label("Do you know it? This is").fill("umbrella")
    page.get_by_role("button", name="Add to next step").click()
    page.get_by_text("Added as umbrella").wait_for()
    other.reload()
    other.get_by_role("button", name="Teach 1 picture").wait_for()
    other.locator(".drop").wait_for()  # it has also asked whether teaching runs
    page.get_by_role("button", name="Teach 1 picture").click()
    page.locator("#dock progress").wait_for()
    other.get_by_role("button", name="Teach 1 picture").click()
    other.get_by_text("the agent is being taught 1 picture of umbrella").wait_for()
    page.close()  # the teaching goes on
    other.reload()
    other.get_by_text("New: umbrella").wait_for()
    assert "umbrella" in server_state.served.agent().classifier.class_names


def test_the_page_works_with_the_keyboard_only(open_page):
    page = open_page("desk")
    page.locator(".drop").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="What this agent has learned").wait_for()
    page.get_by_role("button", name="Rename boat").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "INPUT"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Rename boat"


@pytest.mark.parametrize("screen, scheme", [("desk", "light"), ("desk", "dark"), ("phone", "light"), ("phone", "dark")])
def test_no_serious_accessibility_problem_is_found(open_page, server_state, photos, screen, scheme, address):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(screen, scheme)
    page.locator(".next").wait_for()
    found = axe.run(page).response["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
    page.set_input_files("#files", [photos / "test" / "fish" / "000.jpg", photos / "test" / "umbrella" / "000.jpg"])
    page.locator(".answer .bars").nth(1).wait_for()
    waits = {
        "#ask": ".drop",
        "#pile": ".sheet",
        "#pile/group-1": ".tile",
        "#learned": "table.confusion",
        "/docs": ".endpoint",
    }
    for view, sign in waits.items():
        page.goto(f"{address}/{view}" if view.startswith("#") else f"{address}{view}")
        page.locator(sign).first.wait_for()
        found = axe.run(page).response["violations"]
        serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
        assert serious == [], (view, serious)
    page.goto(f"{address}/#learned")
    page.get_by_role("button", name="Forget boat").click()
    found = axe.run(page).response["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
