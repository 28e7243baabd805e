"""The dashboard in a real browser: in light, in dark and on a narrow screen.

It needs Chromium and the package playwright (docs/HACKING.md), and is skipped where one of them is missing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import velo
from tests.serving.conftest import READ, Served, write_keys
from tests.serving.text_vectors import ROWS, VECTORS

api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
expect = api.expect

#: What must stay text, wherever it stands.
MARKUP = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"

#: Ids that JavaScript would round.
LARGE = [2**60 + row for row in range(ROWS)]

KINDS = ["chair", "sofa", "lamp", "rug", MARKUP]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    manager = api.sync_playwright()
    try:
        play = manager.start()
    except Exception as error:  # the driver is a program of its own, and may lack a library of the system
        pytest.skip(f"LOUD: Playwright's driver does not start here: {str(error).splitlines()[0]}")
    try:
        names = ("chromium", "chromium-browser", "google-chrome", "chrome")
        found = os.environ.get("VELO_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
        found = found or play.chromium.executable_path
        if not Path(found).exists() and "VELO_CHROMIUM" not in os.environ:
            pytest.skip("no Chromium: install one, or name it in VELO_CHROMIUM")
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        try:
            one = play.chromium.launch(executable_path=found, args=sandbox)
        except api.Error as error:  # as in a container without sandboxes
            if "VELO_CHROMIUM" in os.environ:
                raise
            pytest.skip(f"LOUD: {found} does not start here: {str(error).splitlines()[0]}")
        yield one
        one.close()
    finally:
        play.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`things`, which has markup in ids, names and values; `large`, whose ids are large, and no columns."""
    path = tmp_path_factory.mktemp("page")
    table = pa.table(
        {
            "kind": [KINDS[row % 5] for row in range(ROWS)],
            "size": range(ROWS),
            "price": pa.array([row / 8 for row in range(ROWS)], pa.float32()),
            "sold": [row % 3 == 0 for row in range(ROWS)],
            "when": pa.array([86_400 * row for row in range(ROWS)], pa.timestamp("s")),
            "tags": [[f"t{row % 4}", MARKUP] for row in range(ROWS)],
            MARKUP: [None if row % 2 else f"odd {MARKUP}" for row in range(ROWS)],
        }
    )
    ids = [f"r{row:03d}" for row in range(ROWS - 1)] + [MARKUP]
    velo.build_collection(path / "things.velo", VECTORS, shards=2, ids=ids, metadata=table, threads=1)
    velo.build(path / "large.velo", VECTORS, ids=LARGE, threads=1, store_vectors=True).close()
    with velo.open(path / "things.velo", writable=True, durability="process") as index:
        index.delete(["r001"])
    return path


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    paths = [str(folder / f"{name}.velo") for name in ("things", "large")]
    one = Served(*paths, "--writable", "--threads", "1", "--embed", "tests.serving.text_vectors:embed")
    yield one
    one.stop()


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    """The window; at the end nothing ran that should not, and nothing was asked of anybody else."""
    url = served.url
    context = browser.new_context(color_scheme="light", viewport={"width": 1280, "height": 900})
    context.set_default_timeout(20_000)
    one = context.new_page()
    wrong, asked = [], []
    one.on("pageerror", lambda error: wrong.append(str(error)))
    one.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    one.on("request", lambda request: asked.append(request.url))
    one.goto(f"{url}/ui")
    yield one
    assert one.title() != "run"
    assert one.locator("main :is(img, script, style), main [onerror]").count() == 0
    context.close()
    assert not [line for line in wrong if "Failed to load resource" not in line]
    assert asked
    assert not [one for one in asked if not one.startswith(url)]


def opened(page: Any, name: str = "things") -> Any:
    """A collection, from the list of all."""
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.locator("#map svg[role=img]")).to_be_visible()
    return page


def search(page: Any, by: str | None = None, text: str = "", **fields: str) -> None:
    """Fill in and search."""
    if by is not None:
        page.get_by_role("radio", name=by).check()
        if text:
            page.locator(".way:visible").fill(text)
    for name, value in fields.items():
        page.get_by_label(name.capitalize(), exact=True).fill(value)
    page.get_by_role("button", name="Search").click()


def ids(page: Any) -> list[str]:
    return page.locator("#rows tbody th .link").all_inner_texts()


def hits(page: Any, count: int = 20) -> list[str]:
    """The ids, once a search has ended."""
    expect(page.get_by_role("status")).to_have_text(re.compile(rf"^{count} hits?, nearest first"))
    expect(page.locator("#map .mark")).to_have_count(count)
    return ids(page)


def test_collections_are_listed_with_their_costs(page: Any) -> None:
    table = page.get_by_role("table", name="Collections")
    things = table.get_by_role("row").filter(has_text="things")
    expect(things).to_contain_text("239")
    expect(things.get_by_role("cell").nth(2)).to_have_text("l2")
    expect(things).to_contain_text("2 of 2")
    expect(things.get_by_role("meter", name="Pressure")).to_have_attribute(
        "aria-valuenow", re.compile(r"^0\.\d+$")
    )
    expect(things.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"codes \d.*workers \d"))
    opened(page)
    expect(page).to_have_title("things – velo")
    figures = page.locator("#figures")
    for text in ("239", "12", "l2", "memory", "parts", "pressure"):
        expect(figures).to_contain_text(text)
    page.locator("#shards summary").click()
    shards = page.get_by_role("table", name="What each shard costs")
    deleted = shards.get_by_role("row").filter(has_text="deleted")
    assert sorted(deleted.get_by_role("cell").all_inner_texts()) == ["0", "1"]
    expect(shards.get_by_role("row").filter(has_text="memory: codes")).to_be_visible()
    page.get_by_label("Collection", exact=True).select_option("large")
    expect(page).to_have_title("large – velo")
    expect(page.locator("#columns")).to_be_hidden()
    page.go_back()
    expect(page).to_have_title("things – velo")


def test_rows_are_paged_and_open_to_all_their_fields(page: Any) -> None:
    opened(page)
    expect(page.get_by_role("status")).to_have_text("239 rows")
    first = ids(page)
    assert len(first) == 20
    assert "r001" not in first
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_role("button", name="First", exact=True)).to_be_enabled()
    expect(page.locator("#rows tbody th .link").first).not_to_have_text(first[0])
    assert not set(ids(page)) & set(first)
    page.get_by_role("button", name="First", exact=True).click()
    expect(page.locator("#rows tbody th .link").first).to_have_text(first[0])
    opens = page.get_by_role("button", name=first[2], exact=True)
    expect(opens).to_have_attribute("aria-expanded", "false")
    opens.press("Enter")
    expect(opens).to_have_attribute("aria-expanded", "true")
    details = page.locator(".details")
    expect(details).to_contain_text(MARKUP)
    expect(details.locator("dt")).to_have_text(["kind", "size", "price", "sold", "when", "tags", MARKUP])


def test_filters_in_sql_and_json_select_rows(page: Any) -> None:
    opened(page)
    search(page, filter='{"size": {"$lt": 12}, "sold": false}')
    expect(page.get_by_role("status")).to_have_text("7 rows pass")
    assert sorted(ids(page)) == ["r002", "r004", "r005", "r007", "r008", "r010", "r011"]
    search(page, filter="size >= 230 AND kind = 'sofa'")
    expect(page.get_by_role("status")).to_have_text("2 rows pass")
    # A value of a row becomes a filter, beside one in SQL and beside one in JSON.
    page.get_by_role("button", name="r231", exact=True).click()
    page.locator(".details").get_by_role("button", name="t3").click()
    expect(page.get_by_label("Filter", exact=True)).to_have_value(
        "(size >= 230 AND kind = 'sofa') AND \"tags\" = 't3'"
    )


@pytest.mark.long(guarded_by="tests/serving/test_dashboard_page.py::test_filters_in_sql_and_json_select_rows")
def test_a_value_of_a_row_narrows_the_rows(page: Any) -> None:
    opened(page)
    search(page, filter='{"size": {"$lt": 100}}')
    expect(page.get_by_role("status")).to_have_text("99 rows pass")
    page.locator("#rows tbody th .link").first.click()
    page.locator(".details").get_by_role("button", name=MARKUP).first.click()
    expect(page.get_by_role("status")).to_have_text(re.compile("rows pass"))
    told = page.get_by_label("Filter", exact=True).input_value()
    assert '"size":{"$lt":100}' in told
    assert "onerror" in told
    search(page, filter="kind = 'nothing'")
    expect(page.get_by_text("No row passes.")).to_be_visible()


def test_a_wrong_filter_is_explained_beside_it(page: Any) -> None:
    opened(page)
    field = page.get_by_label("Filter", exact=True)
    for filter_text, why in (
        ('{"size": }', "The filter is not JSON"),
        ("size <", "filter"),
        ('{"size": {"$near": 1}}', "$near"),
        ('{"colour": 1}', "there is no column 'colour'"),
    ):
        search(page, filter=filter_text)
        expect(page.get_by_role("alert").first).to_contain_text(why)
    expect(field).to_have_attribute("aria-invalid", "true")
    assert len(ids(page)) == 20  # earlier rows stay
    search(page, filter="size < 3")
    expect(page.get_by_role("status")).to_have_text("2 rows pass")
    expect(page.get_by_role("alert").first).to_be_hidden()
    assert field.get_attribute("aria-invalid") is None


def test_searches_by_a_row_a_vector_and_a_text_agree(page: Any) -> None:
    opened(page)
    search(page, "Like a row", "r017")
    by_row = hits(page)
    assert by_row[0] == "r017"
    search(page, "Text", "like row 17")
    assert hits(page)[:5] == by_row[:5]
    for text in (
        str(VECTORS[17].tolist()),
        " ".join(map(str, VECTORS[17])),
        ",\n".join(map(str, VECTORS[17])),
    ):
        search(page, "Vector", text)
        assert hits(page)[:5] == by_row[:5]
    search(page, filter="size < 100", rows="3")
    near = hits(page, 3)
    assert all(int(one[1:]) < 100 for one in near)
    expect(page.locator("#map .cross")).to_be_visible()
    # The way is in the address.
    page.reload()
    assert hits(page, 3) == near
    for by, text, why in (
        ("Like a row", "nobody", "nobody"),
        ("Vector", "1 2 three", "A vector is numbers"),
        ("Vector", "1 2 3", "12 dimensions"),
        ("Text", "fails", "embedding function failed"),
    ):
        search(page, by, text)
        expect(page.get_by_role("alert").first).to_contain_text(why)
    page.get_by_role("radio", name="All rows").check()
    expect(page.get_by_role("status")).to_have_text("99 rows pass")
    expect(page.get_by_role("alert").first).to_be_hidden()


@pytest.mark.long(
    guarded_by="tests/serving/test_dashboard_page.py::test_searches_by_a_row_a_vector_and_a_text_agree"
)
def test_neighbors_of_a_hit_and_the_way_back(page: Any) -> None:
    opened(page)
    page.get_by_role("button", name="near r002").click()
    first = hits(page)
    assert first[0] == "r002"
    page.get_by_role("button", name=f"near {first[1]}").click()
    expect(page.locator("#rows tbody th .link").first).to_have_text(first[1])
    page.go_back()
    expect(page.locator("#rows tbody th .link").first).to_have_text("r002")
    search(page, filter=json.dumps({"$ids": [MARKUP]}))
    expect(page.locator("#rows tbody th .link")).to_have_text([MARKUP])


def test_large_ids_are_not_rounded(page: Any) -> None:
    opened(page, "large")
    assert ids(page)[:3] == [str(one) for one in LARGE[:3]]
    page.get_by_role("button", name=f"near {LARGE[3]}").click()
    assert hits(page)[0] == str(LARGE[3])
    search(page, filter=f'{{"$ids": [{LARGE[5]}]}}')
    assert hits(page, 1) == [str(LARGE[5])]
    search(page, "Like a row", "words")
    expect(page.get_by_role("alert").first).to_be_visible()


@pytest.mark.long(
    guarded_by="tests/serving/test_dashboard_page.py::test_collections_are_listed_with_their_costs"
)
def test_the_cost_of_a_query_is_shown(page: Any) -> None:
    opened(page)
    expect(page.locator("#cost")).to_be_hidden()
    search(page, "Like a row", "r017", filter="size < 200")
    hits(page)
    expect(page.locator("#spent")).to_have_text(re.compile(r"^[\d.]+ (ms|µs), \d+ reads, [\d.]+ k?B$"))
    page.locator("#cost summary").click()
    table = page.get_by_role("table", name="How each shard answered")
    expect(table.get_by_role("row").filter(has_text="rounds of reads")).to_be_visible()
    passing = table.get_by_role("row").filter(has_text="rows that pass").get_by_role("cell").all_inner_texts()
    assert sum(map(int, passing)) == 199
    expect(page.locator("#explained")).to_contain_text("Filter: ")
    # It stays open, and tells of the next query.
    search(page, filter="size < 100")
    expect(
        table.get_by_role("row").filter(has_text="rows that pass").get_by_role("cell").first
    ).not_to_have_text(passing[0])


@pytest.mark.long(
    guarded_by="tests/serving/test_dashboard_page.py::test_searches_by_a_row_a_vector_and_a_text_agree"
)
def test_a_map_of_a_sample(page: Any) -> None:
    opened(page)
    points = page.locator("#map .points circle")
    expect(points).to_have_count(239)
    color = page.get_by_label("Color by")
    expect(color).to_have_value("kind")
    legend = page.locator("#map .legend button")
    expect(legend).to_have_count(5)
    expect(legend.filter(has_text=MARKUP)).to_be_visible()
    assert MARKUP in "".join(page.locator("#map title").all_text_contents())
    assert color.locator("option").all_inner_texts() == [
        "one color",
        "kind",
        "size",
        "price",
        "sold",
        "when",
        MARKUP,
    ]
    sofas = legend.filter(has_text="sofa")
    sofas.hover()
    expect(page.locator("#map .faint")).to_have_count(239 - 47)
    # A value keeps its color in another sample, where it has another share.
    color_of_rugs = legend.filter(has_text="rug").locator("circle").get_attribute("class")
    search(page, filter="kind = 'rug' OR kind = 'lamp' AND size < 50")
    expect(legend).to_have_count(2)
    assert legend.filter(has_text="rug").locator("circle").get_attribute("class") == color_of_rugs
    search(page, filter="")
    expect(legend).to_have_count(5)
    for column, says in (("price", "to 29.9"), ("when", "1970-"), ("sold", "false")):
        color.select_option(column)
        expect(page.locator("#map .legend")).to_contain_text(says)
    assert page.locator("#map .points .group0").count() + page.locator("#map .points .group1").count() == 239
    color.select_option("one color")
    expect(legend).to_have_count(0)
    page.get_by_role("button", name="near r002").click()
    hits(page)
    expect(page.locator("#map svg[role=img]")).to_have_attribute(
        "aria-label", re.compile("20 hits are ringed, the query is a cross")
    )
    page.locator("#rows tbody tr").nth(2).hover()
    expect(page.locator("#map .mark.on title")).to_have_text(f"2. {ids(page)[1]}")
    page.get_by_role("button", name="Other rows").click()
    page.get_by_label("Points").select_option("500")
    expect(points).to_have_count(239)
    wanted = page.locator("#map .mark title").nth(1).text_content()
    page.locator("#map .mark").nth(1).dispatch_event("click")
    expect(page.locator("#rows tbody th .link").first).to_have_text(wanted.partition(" ")[2])


def test_a_key_is_asked_for_and_kept_in_the_tab(browser: Any, folder: Path, tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", f"read {READ}\n")
    guarded = Served(str(folder / "large.velo"), "--threads", "1", "--api-keys", str(tmp_path / "keys"))
    try:
        context = browser.new_context()
        context.set_default_timeout(20_000)
        page = context.new_page()
        page.goto(f"{guarded.url}/ui")
        dialog = page.get_by_role("dialog", name="This server asks for a key")
        expect(dialog).to_be_visible()
        page.keyboard.press("Escape")
        expect(dialog).to_be_visible()
        field = page.get_by_label(re.compile("A key for reading is enough"))
        expect(field).to_be_focused()
        expect(field).to_have_attribute("type", "password")
        field.fill("wrong-key-0123456789")
        field.press("Enter")
        expect(page.get_by_text("This key is not known here.")).to_be_visible()
        field.fill(READ)
        page.get_by_role("button", name="Use this key").click()
        # The only collection opens at once.
        expect(page.get_by_role("status")).to_have_text("240 rows")
        page.get_by_role("button", name=f"near {LARGE[0]}").click()
        hits(page)
        assert READ not in page.url
        assert page.evaluate("Object.values(localStorage).length + document.cookie.length") == 0
        page.reload()
        hits(page)
        other = context.new_page()
        other.goto(f"{guarded.url}/ui")
        expect(other.get_by_role("dialog")).to_be_visible()
        page.get_by_role("button", name="Forget key").click()
        expect(dialog).to_be_visible()
        context.close()
    finally:
        guarded.stop()


def contrasts(page: Any) -> dict[str, float]:
    """Of words with what is behind them, as WCAG reckons it."""
    script = """selectors => {
      const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
      const bytes = color => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1); return canvas.getImageData(0, 0, 1, 1).data; };
      const light = color => { const [r, g, b] = [...bytes(color)].slice(0, 3).map(one => one / 255)
        .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const behind = element => { for (; element; element = element.parentElement) {
        const color = getComputedStyle(element).backgroundColor;
        if (bytes(color)[3] === 255) return color; } };
      return Object.fromEntries(selectors.map(selector => { const element = document.querySelector(selector);
        const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((x, y) => y - x);
        return [selector, (a + 0.05) / (b + 0.05)]; }));
    }"""
    words = [
        ".brand",
        "#figures dt",
        ".ways :checked + span",
        "button[type=submit]",
        "#columns .link",
        "thead th",
    ]
    words += ["tbody td", "#rows .link", ".id .quiet", ".said", "summary", ".legend button", "#fault"]
    found: dict[str, float] = page.evaluate(script, words)
    return found


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("dark", 480),
        pytest.param(
            "light",
            1280,
            marks=pytest.mark.long(
                guarded_by="tests/serving/test_dashboard_page.py::test_light_and_dark_wide_and_narrow"
            ),
        ),
    ],
)
def test_light_and_dark_wide_and_narrow(browser: Any, served: Served, scheme: str, width: int) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    context.set_default_timeout(20_000)
    page = context.new_page()
    page.goto(f"{served.url}/ui")
    opened(page)
    search(page, "Like a row", "r017")
    hits(page)
    page.locator("#cost summary").click()
    page.locator("#shards summary").click()
    page.locator("#rows tbody th .link").first.click()
    expect(page.locator("#explained table")).to_be_visible()
    search(page, filter='{"nothing": 1}')
    expect(page.locator("#fault")).to_be_visible()
    paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    assert min(contrasts(page).values()) > 4.5, contrasts(page)
    # Nothing sticks out, and each field has a name.
    assert page.evaluate("document.documentElement.scrollWidth") == width
    nameless = """[...document.querySelectorAll("input, select, textarea, button")].filter(one =>
      !one.labels?.length && !one.ariaLabel && !one.textContent.trim()).length"""
    assert page.evaluate(nameless) == 0
    boxes = [
        page.locator(one).bounding_box()
        for one in ("#filter", "#k", "button[type=submit] >> nth=0", "#map svg >> nth=0")
    ]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
    if width == 480:
        assert page.locator("#map").bounding_box()["y"] > page.locator("#rows").bounding_box()["y"] + 500
        assert "size" in page.evaluate(
            'getComputedStyle(document.querySelector("#rows td[data-label=size]"), "::before").content'
        )
    context.close()


@pytest.mark.long(
    guarded_by="tests/serving/test_dashboard_page.py::test_searches_by_a_row_a_vector_and_a_text_agree"
)
def test_the_page_is_usable_by_keyboard(page: Any) -> None:
    opened(page)
    page.get_by_role("radio", name="All rows").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_label("Id of a row")).to_be_focused()
    page.keyboard.type("r017")
    page.keyboard.press("Enter")
    first = hits(page)
    page.keyboard.press("Tab")
    expect(page.get_by_label("Filter", exact=True)).to_be_focused()
    page.keyboard.type("size < 9")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text(re.compile("^8 hits"))
    page.get_by_role("button", name=f"near {ids(page)[0]}").press("Enter")
    expect(page.locator("#rows tbody th .link").first).not_to_have_text(first[0])
    page.get_by_role("button", name="size", exact=True).press("Enter")
    expect(page.get_by_label("Filter", exact=True)).to_be_focused()


def test_an_unreachable_server_is_reported(page: Any) -> None:
    opened(page)
    page.route("**/v1/**", lambda route: route.abort())
    search(page, filter="size < 9")
    expect(page.get_by_role("alert").first).to_contain_text("Failed to fetch")
    page.unroute("**/v1/**")
    search(page, filter="size < 9")
    expect(page.get_by_role("status")).to_have_text("8 rows pass")
    page.evaluate("location.hash = '#nobody'")
    expect(page.get_by_role("alert").first).to_contain_text("nobody")
    page.evaluate("location.hash = '#large?filter=size'")
    expect(page.get_by_role("alert").first).to_contain_text("size")
    expect(page.get_by_role("heading", level=1)).to_have_text("large")
    assert ids(page) == []  # none of another collection
