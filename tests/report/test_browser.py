"""The page in a real browser: Chromium, headless, offline."""

from itertools import pairwise

import pytest

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.mark.parametrize(
    "name", ["stec", "simclr", "wide", "bare", "both", "many", "stec-dark", "wide-phone", "both-phone"]
)
def test_every_page_opens_and_fits_its_screen(visit, name):
    name, _, screen = name.partition("-")
    page = visit(name, **{"": {}, "dark": {"color_scheme": "dark"}, "phone": PHONE}[screen])
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0
    assert page.locator(".chart").count() >= 5
    assert page.locator(".pair").count() == (0 if name == "bare" else 12)
    assert page.locator(".map canvas").count() == (0 if name == "bare" else 1)
    unlabelled = page.eval_on_selector_all(
        "[tabindex], button, select, input",
        "nodes => nodes.filter(n => !(n.ariaLabel || n.textContent.trim() || n.labels?.length || n.closest('label')))"
        ".map(n => n.outerHTML.slice(0, 80))",
    )
    assert unlabelled == []


@pytest.mark.parametrize("width", [390, 320])
def test_two_runs_stand_beside_each_other_on_a_phone(visit, width):
    page = visit("both", **PHONE | {"viewport": {"width": width, "height": 700}})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for section in ("results", "setting"):
        table = page.locator(f"#{section} .scroll")
        assert table.evaluate("node => node.scrollWidth - node.clientWidth") <= 0
        assert table.locator("tr", has_text="method").first.locator("td").all_text_contents() == ["stec", "simclr"]


@pytest.mark.parametrize("width", [390, 320])
def test_names_in_tables_are_not_broken_within_a_word(visit, width):
    page = visit("both", **PHONE | {"viewport": {"width": width, "height": 700}})
    broken = page.evaluate(
        """() => [...document.querySelectorAll(".scroll th")].flatMap((cell) => {
            const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [];
            while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/[^\\s-]+/g)) {
                const range = document.createRange();
                range.setStart(texts.currentNode, word.index);
                range.setEnd(texts.currentNode, word.index + word[0].length);
                if (range.getClientRects().length > 1) found.push(word[0]);
            }
            return found;
        })"""
    )
    assert broken == []


def test_a_point_shows_its_image(visit):
    page = visit("stec")
    page.click("[data-mode=originals]")
    canvas = page.locator(".map > canvas")
    canvas.scroll_into_view_if_needed()
    card = page.locator(".card")
    assert card.is_hidden()
    shown = []
    for i in (3, 11):
        x, y = page.evaluate(f"report.map.position({i})")
        canvas.hover(position={"x": x, "y": y})
        assert card.is_visible()
        expected = page.evaluate(f"report.data.runs[0].map.index[{i}]")
        assert f"test image {expected}" in card.inner_text()
        shown.append(card.locator("canvas").evaluate("canvas => canvas.toDataURL()"))
    assert shown[0] != shown[1]
    page.mouse.move(1, 1)
    assert card.is_hidden()


@pytest.mark.parametrize("screen", [{}, PHONE])
def test_long_names_of_classes_are_not_cut_off(visit, screen):
    page = visit("stec", **screen)
    page.evaluate(
        """() => {
            const { map } = report.data.runs[0], place = document.getElementById("map-place");
            const classes = map.classes.map((_, i) => `class_${i}_`.padEnd(60, "x"));
            featureMap.build(place, { ...map, classes }, report.data.pictures[map.picture]);
        }"""
    )
    page.click("[data-mode=originals]")
    page.locator(".map > canvas").focus()
    page.keyboard.press("ArrowRight")
    for part in (".card", ".classes"):
        assert page.locator(part).evaluate("node => node.scrollWidth - node.clientWidth") <= 0
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_the_map_is_walked_by_keyboard(visit):
    page = visit("stec")
    page.locator(".map > canvas").focus()
    texts = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
        texts.append(page.locator(".card").inner_text())
    assert "view x" in texts[0]
    assert len(set(texts)) > 1
    page.keyboard.press("Escape")
    assert page.locator(".card").is_hidden()


def test_a_curve_tells_its_values(visit):
    page = visit("both")
    chart = page.locator(".chart", has_text="identity loss")
    assert "epoch" not in chart.locator("output").inner_text()
    chart.locator("svg").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert "at epoch 3.3" in chart.locator("output").inner_text()
    chart.locator("svg").hover()
    assert "at epoch 2" in chart.locator("output").inner_text()


def test_values_at_an_epoch_are_those_of_the_runs_that_reached_it(visit):
    page = visit("uneven")
    chart = page.locator(".chart", has_text="identity loss")
    loss = page.evaluate("report.data.runs[1].curves.identity.map(drawing.number)")
    chart.locator("svg").hover(position={"x": chart.locator("svg").bounding_box()["width"] - 3, "y": 40})
    assert chart.locator("output").inner_text().split() == ["–", loss[-1], "at", "epoch", "4"]
    page.mouse.move(1, 1)
    chart.locator("svg").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert chart.locator("output").inner_text().split() == ["–", loss[-2], "at", "epoch", "3.3"]
    assert chart.locator("svg").get_attribute("aria-label") == f"identity loss: wide –, stec {loss[-2]}, at epoch 3.3"


def test_a_seventh_run_is_told_from_the_first(visit):
    page = visit("stec")
    looks = page.evaluate(
        """() => {
            const ids = ["curve-charts", "curve-legend", "health-charts"];
            for (const id of ids) document.getElementById(id).replaceChildren();
            charts.draw(Array.from({ length: 8 }, (_, i) => ({ ...report.data.runs[0], name: `run ${i}` })));
            const look = (node, keys) => keys.map((key) => getComputedStyle(node)[key]).join();
            return [["#curve-charts .chart:first-child .curve", ["stroke", "strokeDasharray"]],
                ["#curve-legend .swatch", ["backgroundColor", "backgroundImage", "borderRadius"]]]
                .map(([query, keys]) => [...document.querySelectorAll(query)].map((node) => look(node, keys)));
        }"""
    )
    for found in looks:
        assert len(found) == len(set(found)) == 8


def test_every_axis_has_a_scale(visit):
    """One number beside an axis tells no distance on it."""
    page = visit("bare")
    for low, high in ((13.1, 19.6), (9.1, 9.97), (-0.98, -0.31), (0, 1), (22.0, 27.9), (1205, 1990)):
        ticks = page.evaluate("range => charts.ticks(...range, 3)", [low, high])
        assert 2 <= len(ticks) <= 6
        assert low <= ticks[0] < ticks[-1] <= high


def test_a_curve_of_one_value_is_a_dot(visit):
    page = visit("wide")
    chart = page.locator(".chart", has_text="identity loss")
    assert chart.locator(".curve.only").count() == 1
    assert visit("stec").locator(".curve.only").count() == 0


def test_small_numbers_are_not_rounded_away(visit):
    page = visit("bare")
    values = [0, 0.0002, -0.00051, 0.0123, 0.5, 2.345, 12.34, 123.4, 12345.6]
    shown = ["0", "0.0002", "−0.00051", "0.012", "0.500", "2.35", "12.3", "123", "12,346"]
    assert page.evaluate("values => values.map(drawing.number)", values) == shown


@pytest.mark.parametrize("screen", [{}, PHONE])
def test_matrices_of_many_bins_lie_beside_each_other(visit, screen):
    page = visit("many", **screen)
    assert page.locator(".matrix").count() == 4
    for place in page.locator(".matrix").all():
        box, table = place.bounding_box(), place.locator("table").bounding_box()
        assert table["width"] <= box["width"] + 0.5
    ends = page.eval_on_selector_all(
        ".matrix:first-child thead th",
        """nodes => nodes.filter((node) => node.firstChild).map((node) => {
            const range = document.createRange();
            range.selectNodeContents(node);
            const { left, right } = range.getBoundingClientRect();
            return [left, right];
        })""",
    )
    assert len(ends) > 5
    assert all(one[1] < other[0] for one, other in pairwise(ends)), "their numbers do not run into each other"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_numbers_of_a_matrix_can_be_read(visit, scheme):
    """At least 4.5 to 1, which WCAG asks of small text, whatever the share."""
    page = visit("stec", color_scheme=scheme)
    contrasts = page.evaluate(
        """() => {
            const numbers = (text) => text.match(/[0-9.]+/g).map(Number);
            const linear = (v) => (v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            const light = (rgb) => rgb.map((v) => linear(v / 255))
                .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
            const paper = numbers(getComputedStyle(document.body).backgroundColor);
            const cell = document.querySelector(".matrix tbody td");
            return [0, 0.3, 0.5, 0.6, 0.8, 1].map((share) => {
                cell.style.setProperty("--share", share);
                const style = getComputedStyle(cell), [r, g, b, alpha = 1] = numbers(style.backgroundColor);
                const ground = [r, g, b].map((v, i) => alpha * v + (1 - alpha) * paper[i]);
                const [low, high] = [light(ground), light(numbers(style.color))].sort((a, b) => a - b);
                return (high + 0.05) / (low + 0.05);
            });
        }"""
    )
    assert min(contrasts) >= 4.5


@pytest.mark.parametrize("drawing", [".chart svg", ".map > canvas", ".crop.first"])
def test_shortcuts_of_the_browser_are_left_to_it(visit, drawing):
    page = visit("stec")
    taken = page.locator(drawing).first.evaluate(
        """node => [{}, { altKey: true }, { ctrlKey: true }, { metaKey: true }].map((held) => {
            const event = new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true, cancelable: true, ...held });
            node.dispatchEvent(event);
            return event.defaultPrevented;
        })"""
    )
    assert taken == [True, False, False, False]


def test_a_run_is_chosen(visit):
    page = visit("both")
    assert page.locator(".matrix:visible").count() == 4
    assert page.locator(".pair").first.locator("canvas").count() == 4
    page.select_option("#run", label="simclr")
    assert page.locator(".matrix:visible").count() == 0
    assert page.locator(".pair").first.locator("canvas").count() == 3
