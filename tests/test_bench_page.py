"""The report's page, as a browser shows it: figures are drawn, nothing overflows or is fetched."""

import re
import shutil
from html.parser import HTMLParser

import bench_records as made
import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from encoder_fast.benchmarks import page, plot_style
from encoder_fast.benchmarks.plots import plots

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update"
).split()
WIDTHS = (1280, 390)
WHOLE = [
    "1x32: ratio to transformers sdpa",
    "8x128: ratio to transformers sdpa",
    "search-log: ratio to transformers sdpa",
    "Speed against length",
    "Memory against length",
    "Padding waste",
    "Real tokens/s against slots/s",
    "8x128: time of a step",
    "8x128: memory of a step",
    "Roofline, bfloat16, forward",
]
"""Titles of the figures of `bench_records.whole()`."""

LOOK = """
const width = arguments[0], found = {titles: [], faults: []};
const root = document.documentElement;
if (root.scrollWidth > width) found.faults.push(`the page is ${root.scrollWidth} px wide`);
const held = (element) => {
  for (let e = element.parentElement; e && e !== document.body; e = e.parentElement)
    if (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX)) return true;
  return false;
};
for (const e of document.body.querySelectorAll('*')) {
  const box = e.getBoundingClientRect();
  if (e.ownerSVGElement) {
    const frame = e.ownerSVGElement.getBoundingClientRect();
    if (e.tagName === 'text' && (box.right > frame.right + 1 || box.left < frame.left - 1
        || box.top < frame.top - 1 || box.bottom > frame.bottom + 1))
      found.faults.push(`${e.textContent} sticks out of its figure`);
  } else if (!held(e) && (box.right > width + 0.5 || box.left < -0.5)) {
    found.faults.push(`${e.tagName} ${e.className} from ${box.left} to ${box.right} px`);
  }
}
for (const figure of document.querySelectorAll('figure')) {
  const title = figure.querySelector('h3').textContent, svg = figure.querySelector('svg');
  found.titles.push(title);
  if (!svg) { found.faults.push(`${title}: no svg`); continue; }
  const box = svg.getBoundingClientRect(), ink = svg.getBBox();
  const marks = svg.querySelectorAll('path, use');
  if (box.width < 200 || box.height < 40) found.faults.push(`${title}: ${box.width} px wide`);
  if (ink.width < 150 || ink.height < 25 || marks.length < 4)
    found.faults.push(`${title}: nothing is drawn`);
}
const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
if (new Set(ids).size !== ids.length) found.faults.push('an id is there twice');
for (const e of performance.getEntriesByType('resource')) found.faults.push(`fetched ${e.name}`);
found.text = document.body.textContent;
return found;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    profile = tmp_path_factory.mktemp("profile")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    started = webdriver.Chrome(options=options, service=Service(executable_path=driver))
    yield started
    started.quit()


def look(browser, path, width, expected) -> tuple[list[str], str]:
    """What is wrong with a page at a width in pixels, and its text.

    Args:
        expected: the figures' titles, in order.
    """
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(path.as_uri())
    found = browser.execute_script(LOOK, width)
    faults = found["faults"]
    if found["titles"] != expected:
        faults.append(f"figures are {found['titles']}")
    faults += [f"console: {entry['message']}" for entry in browser.get_log("browser")]
    return faults, found["text"]


@pytest.fixture(scope="module")
def whole_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    page.write(made.whole(), path)
    return path


@pytest.mark.parametrize("width", WIDTHS)
def test_everything_is_there_and_nothing_overflows(browser, whole_page, width):
    faults, text = look(browser, whole_page, width, WHOLE)
    assert faults == []
    for part in (
        *made.ENGINES,
        "1.40 (1.36-1.46)",
        "0.60 (0.58-0.62)",
        "no steady round",
        "4 of 5",
        "Sample CPU <fast> & quiet",
        "cosine 0.91 < 0.99 & <b>too low</b>",
        "RuntimeError: <script>alert(1)",
        "runs on cuda, not on cpu",
        "encoder_fast compiled: 0.94× openvino",
        "torch 2.13.0",
    ):
        assert part in text, part
    assert "The run was" not in text


LONG = "a contender with a name of " + "unbroken" * 9
CASES = {
    "the baseline alone": (
        made.models({made.BASELINE: 1.0}),
        ["Speed against length", "Memory against length", *WHOLE[5:7]],
        ["baseline"],
    ),
    "one workload, no memory": (
        [made.timed(name, "8x128", ratio) for name, ratio in made.ENGINES.items()],
        WHOLE[1:2],
        ["0.60 (0.58-0.62)"],
    ),
    "no steady round": (
        [made.timed(made.BASELINE, "1x32"), made.unsteady("encoder_fast torch", "1x32")],
        [],
        ["no steady round", "0 of 5"],
    ),
    "long names": (
        made.models({made.BASELINE: 1.0, LONG: 0.5, "encoder_fast torch": 2.0}, ["1x32", "8x128"]),
        WHOLE[:2] + WHOLE[3:5],
        [LONG],
    ),
    "nothing but reasons": (
        [made.untimed("failed", "vllm", None, "unbroken" * 40 + " <&> \"'")],
        [],
        ["<&> \"'", "nothing was timed"],
    ),
    "interrupted": (
        [*made.models(workloads=["8x128"]), made.END | {"status": "interrupted"}],
        WHOLE[1:2],
        ["The run was interrupted"],
    ),
    "cut off in the middle": ([made.ENVIRONMENT], [], ["The run was cut off"]),
    "ops without a roof": ([r for r in made.ops() if r["kind"] == "op"], WHOLE[-1:], ["peer sdpa"]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_there_is_not_drawn(browser, tmp_path, case):
    records, titles, parts = CASES[case]
    page.write([made.ENVIRONMENT, *records], tmp_path / "page.html")
    for width in WIDTHS:
        faults, text = look(browser, tmp_path / "page.html", width, titles)
        assert faults == []
        for part in parts:
            assert part in text


BREAKS = {
    "too wide": (r"<main>", '<main><div style="width:2000px">x</div>', "the page is 2"),
    "sticks out to the left": (
        r"<main>",
        '<main><b style="margin-left:-99px">x</b>',
        "B .* from -",
    ),
    "a figure is missing": (r"(?s)<figure.*?</figure>", "", "figures are"),
    "a figure is empty": (r"(?s)(<svg[^>]*>).*?</svg>", r"\1</svg>", "nothing is drawn"),
    "text leaves a figure": (r"(<svg[^>]*>)", r'\1<text x="400">out</text>', "out sticks out"),
    "something is fetched": (r"<main>", '<main><img src="absent.png">', "console: .*absent.png"),
    "a script fails": (
        r"(?s)<meta http-equiv.*?>(.*)<main>",
        r"\1<main><script>nothing.here()</script>",
        "console: .*nothing",
    ),
    "an id twice": (r"<main>", '<main><i id="method"></i>', "an id is there twice"),
}


@pytest.mark.parametrize("case", BREAKS)
def test_the_check_sees_a_broken_page(browser, whole_page, tmp_path, case):
    pattern, better, fault = BREAKS[case]
    text, count = re.subn(pattern, better, whole_page.read_text(encoding="utf-8"), count=1)
    assert count == 1
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    faults, _ = look(browser, tmp_path / "page.html", 390, WHOLE)
    assert any(re.search(fault, found) for found in faults), faults


class Tags(HTMLParser):
    """Names and attributes of all elements."""

    def __init__(self, text: str):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_file_needs_nothing_else(whole_page):
    tags = Tags(whole_page.read_text(encoding="utf-8")).found
    assert {tag for tag, _ in tags}.isdisjoint({"script", "iframe", "img", "object"})
    for _, given in tags:
        for name in ("src", "href", "xlink:href"):
            assert given.get(name, "#").startswith(("#", "data:"))


def test_the_same_records_give_the_same_page(whole_page, tmp_path):
    page.write(made.whole(), tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == whole_page.read_bytes()


def test_a_failed_write_leaves_the_old_page(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(KeyError):
        page.write([made.ENVIRONMENT, {"kind": "model"}], path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_an_engine_has_one_colour_on_all_figures():
    looks = plot_style.looks([*made.ENGINES, "vllm other"])
    assert len({(one.colour, one.line, one.marker) for one in looks.values()}) == len(looks)
    ours = {name for name, one in looks.items() if one.ours}
    assert ours == {name for name in made.ENGINES if name.startswith("encoder_fast")}
    assert not {one.colour for name, one in looks.items() if name not in ours} & {
        looks[name].colour for name in ours
    }


def test_figures_take_the_colours_of_the_page():
    drawn = plots(made.whole())
    assert [plot.title for plot in drawn] == WHOLE
    for plot in drawn:
        assert not re.search(r"#[0-9a-f]{6}\b", plot.svg), plot.title
        assert plot.caption.endswith(".")
