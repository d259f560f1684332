"""The pages in a real browser: keys, live updates, both colour schemes, and hostile text that does nothing.

``make test ARGS="-m browser tests/view"``; needs Chromium (Debian: apt-get install chromium).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repairgym.records import VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.view.export import export_site

sys.path.insert(0, str(Path(__file__).parent))
from accessibility import RUN, axe_source
from chromium import PROGRAM, Chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not PROGRAM, reason="no Chromium here (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def start_server(folder, *options):
    """`repairgym view` on a free port; returns the process and the address that it prints."""
    command = "from repairgym.cli.main import main; main()"
    arguments = [sys.executable, "-c", command, "view", str(folder), "--port", "0", *options]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split()[0]


def stop(process):
    process.send_signal(2)
    assert process.wait(30) == 0


@pytest.fixture(scope="module")
def address(run_folder):
    process, found = start_server(run_folder.parent)
    yield found.rstrip("/")
    stop(process)


def here(browser):
    return browser.evaluate("[...document.querySelectorAll('[data-row]')].findIndex(one => one.matches('.here'))")


def test_the_list_is_used_by_keys_alone(browser, address):
    browser.open(f"{address}/r/small/trajectories?order=oldest")
    browser.press("j", "j", "k")
    assert here(browser) == 0
    browser.press("x", "j", "x")
    assert browser.evaluate("document.querySelectorAll('input[name=of]:checked').length") == 2
    browser.press("c")
    browser.wait_for("location.pathname === '/compare' && document.readyState === 'complete'")
    assert browser.evaluate("document.querySelectorAll('.compare > table > thead th').length") == 3
    browser.press("u")
    browser.wait_for("location.pathname === '/r/small' && document.readyState === 'complete'")


def test_enter_opens_and_n_continues(browser, address):
    browser.open(f"{address}/r/small/trajectories?order=oldest&phase=teacher")
    browser.press("j", "Enter")
    browser.wait_for("location.pathname === '/r/small/t/1' && document.readyState === 'complete'")
    browser.press("n")
    browser.wait_for("location.pathname === '/r/small/t/2' && document.readyState === 'complete'")
    assert browser.evaluate("location.search") == "?phase=teacher&order=oldest"
    browser.press("j")
    assert browser.evaluate("document.activeElement.id") == "turn-1"
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.classList.contains('folded')")
    browser.press("t")
    browser.wait_for("location.pathname === '/r/small/t/2/tokens'")


def test_slash_searches_and_keys_are_text_there(browser, address):
    browser.open(f"{address}/r/small")
    browser.press("/", "t", "i", "n", "y", "-", "2")
    assert browser.evaluate("document.activeElement.value") == "tiny-2"
    browser.press("Enter")
    browser.wait_for("location.search === '?q=tiny-2' && document.readyState === 'complete'")
    assert browser.evaluate("document.querySelectorAll('tbody [data-row]').length") == 8


def test_help_opens_and_closes(browser, address):
    browser.open(f"{address}/")
    browser.press("?")
    assert browser.evaluate("document.getElementById('help').open")
    browser.press("j", "Escape")
    browser.wait_for("!document.getElementById('help').open")


def test_shading_is_remembered(browser, address):
    browser.open(f"{address}/r/small/t/1")
    before = browser.evaluate("document.body.classList.contains('shaded')")
    browser.press("s")
    browser.open(f"{address}/r/small/t/2")
    assert browser.evaluate("document.body.classList.contains('shaded')") is not before


def test_pages_are_quiet_and_ask_nobody_else(browser, address):
    for path in ("/", "/r/small", "/r/small/t/1", "/r/small/t/1/tokens", "/r/small/groups", "/r/small/trajectories"):
        browser.open(address + path)
        assert browser.complaints() == []
        assert all(asked.startswith(address) for asked in browser.requests()), browser.requests()


def test_hostile_text_runs_nothing(browser, hostile_folder):
    process, address = start_server(hostile_folder)
    try:
        run = f"{address}r/a%20%3Cb%3E%20&%20'c'"
        for path in ("", "/trajectories", "/t/1", "/t/1/tokens", "/groups", "/t/1/observation.txt?of=1"):
            browser.open(run + path)
            assert browser.complaints() == [], path
            assert browser.evaluate("document.querySelectorAll('img, script:not([src])').length") == 0
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"), path
    finally:
        stop(process)


def test_a_running_run_is_followed(browser, tmp_path, trajectory_maker):
    with RunStore.create(tmp_path / "run.db") as store:
        store.start_phase("rl")
        store.add_trajectory(trajectory_maker("a"), phase="rl", step=1, split="train")
        process, address = start_server(tmp_path)
        try:
            browser.open(f"{address}r/{tmp_path.name}/trajectories")
            count = "document.querySelectorAll('tbody [data-row]').length"
            assert browser.evaluate(count) == 1
            browser.press("j")
            failed = trajectory_maker("b", kind=VerdictKind.FAILED)
            store.add_trajectory(failed, phase="rl", step=1, split="train")
            browser.wait_for(f"{count} === 2")
            assert here(browser) == 0
            assert browser.complaints() == []
        finally:
            stop(process)
        browser.wait_for("document.getElementById('live-state').textContent === 'server is gone'", 400)


def test_a_token_opens_a_session(browser, run_folder):
    process, address = start_server(run_folder, "--token", "correct-horse-battery-staple")
    try:
        bare = address.partition("?")[0]
        browser.open(bare)
        assert "a token is required" in browser.evaluate("document.body.textContent")
        browser.open(address)
        assert browser.evaluate("location.href") == bare
        browser.open(f"{bare}r/small")
        assert browser.evaluate("document.querySelector('h1').textContent") == "small"
    finally:
        stop(process)


CONTRAST = """(() => {
  const light = text => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const probe = (name, under) => { const one = document.createElement('i'); one.style.color = `var(--${name})`;
      document.body.append(one); const value = getComputedStyle(one).color; one.remove(); return light(value); };
  const found = [];
  for (const under of ['bg', 'card', 'code']) 
  for (const ink of ['ink', 'muted', 'accent', 'good', 'bad', 'warn', 'odd']) {
    const [a, b] = [probe(ink), probe(under)].sort((x, y) => y - x); found.push([ink, under, (a + .05) / (b + .05)]); }
  return found; })()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(browser, address, scheme):
    browser.media(scheme)
    browser.open(f"{address}/r/small/t/1")
    weak = [one for one in browser.evaluate(CONTRAST) if one[2] < 4.5]
    assert weak == []
    browser.media()


def test_print_leaves_the_frame_out(browser, address):
    browser.open(f"{address}/r/small/t/1")
    browser.media(kind="print")
    hidden = "[...document.querySelectorAll('.top, .outline')].every(one => getComputedStyle(one).display === 'none')"
    assert browser.evaluate(hidden)
    browser.media()


def test_a_narrow_window_needs_no_sideways_scrolling(browser, address):
    browser.resize((420, 800))
    for path in ("/", "/r/small", "/r/small/t/1", "/r/small/trajectories"):
        browser.open(address + path)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"), path
    browser.resize((1280, 860))


NARROW = (390, 844)
PATHS = (
    "/", "/leaderboard",
    "/api", "/words", "/r/small", "/r/small/setup", "/r/small/metrics", "/r/small/metric?phase=teacher&name=reward",
    "/r/small/phase?name=teacher", "/r/small/groups", "/r/small/trajectories", "/r/small/t/1", "/r/small/t/1/tokens",
    "/r/small/reviews", "/r/small/task?id=tiny-0",
    "/r/small/group?phase=teacher&step=0&id=teacher%2F0%2Ftiny-0", "/r/none",
)  # fmt: skip


def test_no_page_is_wider_than_a_narrow_screen(browser, address):
    browser.resize(NARROW)
    try:
        for path in PATHS:
            browser.open(address + path)
            assert browser.evaluate("document.documentElement.scrollWidth") <= NARROW[0], path
    finally:
        browser.resize((1280, 860))


@pytest.fixture(scope="module")
def axe():
    return axe_source() or pytest.skip("axe-core cannot be installed here (npm)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(browser, address, axe, scheme):
    browser.media(scheme)
    try:
        for path in PATHS:
            browser.open(address + path)
            browser.evaluate(axe)
            assert browser.evaluate(RUN) == [], path
    finally:
        browser.media()


def test_axe_sees_a_fault(browser, address, axe):
    browser.open(f"{address}/r/small")
    browser.evaluate(axe)
    browser.evaluate("document.body.append(Object.assign(document.createElement('img'), {src: '/static/icon.svg'}))")
    assert [one.partition(":")[0] for one in browser.evaluate(RUN)] == ["image-alt"]


def test_a_review_is_written_by_keys_and_found_in_the_queue(browser, run_folder, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(run_folder, folder)
    process, address = start_server(folder)
    try:
        browser.open(f"{address}r/copy/t/1")
        browser.press("r", "o", "d", "d")
        browser.evaluate("document.querySelector('[name=status]').value = 'queued'")
        browser.evaluate("document.querySelector('.review button').click()")
        browser.wait_for("location.hash === '#review' && document.readyState === 'complete'")
        assert browser.evaluate("document.getElementById('note').value") == "odd"
        browser.open(f"{address}r/copy/trajectories?order=oldest")
        browser.press("j", "j", "x")
        browser.evaluate("document.getElementById('queue').click()")
        browser.wait_for("location.pathname === '/r/copy/reviews' && document.readyState === 'complete'")
        assert browser.evaluate("document.querySelectorAll('.card').length") == 2
        browser.press("j", "Enter")
        browser.wait_for("location.pathname === '/r/copy/t/1'")
    finally:
        stop(process)


def test_another_page_cannot_send_a_form(browser, address, tmp_path):
    page = tmp_path / "other.html"
    page.write_text(f'<form method="post" action="{address}/r/small/t/1/review"><input name="note" value="x"></form>')
    browser.open(page.as_uri())
    browser.evaluate("document.forms[0].submit()")
    browser.wait_for("location.protocol === 'http:' && document.readyState === 'complete'")
    assert "from a page of this server only" in browser.evaluate("document.body.textContent")


def test_tokens_are_shaded_as_chosen(browser, address):
    browser.open(f"{address}/r/small/t/1/tokens")
    color = "getComputedStyle(document.querySelector('.tokens .tok.V0')).backgroundColor"
    seen = {browser.evaluate(color)}
    for name in ("mask", "version"):
        browser.evaluate(f"document.querySelector('[value={name}]').click()")
        seen.add(browser.evaluate(color))
        assert browser.evaluate(f"getComputedStyle(document.querySelector('.by-{name}')).display") == "flex"
    assert len(seen) == 3


def test_eight_members_without_observations_fit_a_screen(browser, address):
    browser.resize((1280, 860))
    browser.open(f"{address}/r/small/group?phase=teacher&step=0&id=teacher%2F0%2Ftiny-0")
    browser.press("o")
    assert browser.evaluate("getComputedStyle(document.querySelector('.compare .obs')).display") == "none"
    assert browser.evaluate("(one => one.scrollWidth <= one.clientWidth)(document.querySelector('.compare'))")
    browser.press("o")


def test_an_id_is_copied(browser, address):
    browser.open(f"{address}/r/small/t/1")
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.evaluate("document.querySelector('[data-copy=trajectory-id]').click()")
    browser.wait_for("document.querySelector('[data-copy=trajectory-id]').textContent === 'Copied'")
    shown = browser.evaluate("document.getElementById('trajectory-id').textContent")
    assert browser.evaluate("navigator.clipboard.readText()") == shown != ""


def test_arrows_walk_through_a_list(browser, address):
    browser.open(f"{address}/r/small/t/2?phase=teacher&order=oldest")
    assert "2 of 12" in browser.evaluate("document.querySelector('.top').textContent")
    browser.press("ArrowRight")
    browser.wait_for("location.pathname === '/r/small/t/3' && document.readyState === 'complete'")
    browser.press("ArrowLeft")
    browser.wait_for("location.pathname === '/r/small/t/2' && document.readyState === 'complete'")


def test_an_exported_site_works_from_a_file(browser, run_folder, tmp_path):
    export_site(run_folder, tmp_path / "site", formats={})
    browser.open((tmp_path / "site" / "index.html").as_uri())
    assert browser.complaints() == []
    assert browser.evaluate("document.querySelector('h1').textContent") == "small"
    assert browser.evaluate("getComputedStyle(document.querySelector('.top')).position") == "sticky"
    browser.evaluate("[...document.querySelectorAll('.doors a')][0].click()")
    browser.wait_for("location.pathname.endsWith('r/small/trajectories.html') && document.readyState === 'complete'")
    browser.press("/", "t", "i", "n", "y", "-", "2")
    shown = "[...document.querySelectorAll('tbody [data-row]')].filter(row => !row.hidden).length"
    assert browser.evaluate(shown) == 8
    assert all(asked.startswith("file://") for asked in browser.requests())


def test_a_killed_run_says_so(browser, tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from repairgym.rollout.calls import locked; "
        "from repairgym.rollout.store import RunStore\n"
        "with locked(Path(sys.argv[1])), RunStore.create(Path(sys.argv[1]) / 'run.db') as store:\n"
        "    store.start_phase('rl'); print('held', flush=True); time.sleep(300)"
    )
    work = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    work.stdout.readline()
    process, address = start_server(tmp_path)
    try:
        browser.open(f"{address}r/{tmp_path.name}")
        state = "document.querySelector('.head .state').textContent"
        assert browser.evaluate(state) == "running"
        work.kill()
        work.wait()
        browser.wait_for(f"{state} === 'killed'", 400)
    finally:
        work.kill()
        stop(process)
