"""The page in a real browser: Chromium, headless, offline."""

import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_runs import Runner

from stec.actions import REPRESENTATIONS, Bins, EfferenceCopy, Glimpse, quadrilateral
from stec.config import load
from stec.report.page import write_report

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """Reports of tiny runs. With PCA: UMAP takes many seconds to load."""
    root = tmp_path_factory.mktemp("runs")
    for i in range(40):
        path = root / "pictures" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (80, 40), (5 * i, 100, 200)).save(path)
    run = Runner(root)
    stec, simclr = (run(name, f"method={name}")[0].path for name in ("stec", "simclr"))
    wide = run("wide", "data.source=folder", f"data.root={root / 'pictures'}", "epochs=1")[0].path
    many = run("many", "manipulation.k=24", "epochs=1")[0].path
    bare = root / "bare"
    bare.mkdir()
    for name in ("config.yaml", "metrics.jsonl"):
        shutil.copy(wide / name, bare)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "umap", None)
        pages = {"both": write_report([stec, simclr], root / "both.html", 30)[0]}
        pages |= {path.name: write_report([path], None, 30)[0] for path in (stec, simclr, wide, many)}
        pages["uneven"] = write_report([wide, stec], root / "uneven.html", 30)[0]
        shutil.move(root / "pictures", root / "elsewhere")
        pages["bare"] = write_report([bare], None, 30)[0]
    return pages


def value(page, key: str) -> float:
    return float(page.text_content(f'[data-value="{key}"]').replace("−", "-"))


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


def test_the_arithmetic_of_the_page_is_that_of_the_library(visit):
    page = visit("stec")
    generator = torch.Generator().manual_seed(0)
    n = 300

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    source = (16 + 200 * uniform(n, 2)).round()

    def glimpse() -> Glimpse:
        size = source * (0.1 + 0.9 * uniform(n, 2))
        crop = torch.cat([(source - size) * uniform(n, 2), size], dim=1)
        rest = torch.zeros(n, 4), torch.zeros(n, 4), torch.zeros(n), torch.zeros(n), torch.zeros(n)
        return Glimpse(crop, source, uniform(n) < 0.5, *rest)

    copy = EfferenceCopy(glimpse(), glimpse())
    listed = [
        [{"crop": g.crop[i].tolist(), "source": source[i].tolist(), "mirrored": bool(g.mirrored[i])} for g in copy]
        for i in range(n)
    ]
    for name in ("egocentric", "paper", "official", "allocentric"):
        known = REPRESENTATIONS[name]
        values, codes = page.evaluate(
            """([name, pairs]) => {
                const values = pairs.map(([first, second]) => report.actions[name](first, second));
                const { edges } = report.data.explorer.bins[name];
                return [values, values.map((value) => report.actions.codes(value, edges))];
            }""",
            [name, listed],
        )
        expected = known(copy)
        torch.testing.assert_close(torch.tensor(values, dtype=torch.float64), expected, rtol=1e-6, atol=1e-6)
        bins = Bins.uniform(load("default").manipulation.k, known.low, known.high)
        assert torch.equal(torch.tensor(codes), bins(expected))
    corners = page.evaluate(
        "pairs => pairs.map(pair => report.actions.quadrilateral(report.actions.egocentric(...pair)))", listed
    )
    expected = quadrilateral(REPRESENTATIONS["egocentric"].function(copy))
    torch.testing.assert_close(torch.tensor(corners, dtype=torch.float64), expected, rtol=1e-6, atol=1e-6)


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


def test_an_action_that_leads_far_beyond_x_is_drawn_whole(visit):
    page = visit("stec")
    _, _, tall, wide = page.evaluate("report.explorer.state().first.crop")
    height, width = page.evaluate("report.explorer.state().first.source")
    for crop, keys in (
        ("first", {"Shift+ArrowUp": 50 * tall / height - 15, "Shift+ArrowLeft": 50 * wide / width - 15}),
        ("second", dict.fromkeys(("ArrowUp", "ArrowLeft", "Shift+ArrowDown", "Shift+ArrowRight"), 50)),
    ):
        page.locator(f".crop.{crop}").focus()
        for key, times in keys.items():
            for _ in range(round(times)):
                page.keyboard.press(key)
    place = page.evaluate("Object.values(report.explorer.state())")
    corners = page.evaluate("pair => report.actions.quadrilateral(report.actions.egocentric(...pair)).flat()", place)
    assert 2 < max(map(abs, corners)) < 7
    left, top, right, bottom, side = page.locator("canvas[aria-label='x, and where x′ lies on it']").evaluate(
        """canvas => {
            const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const [r, g, b] = drawing.colour("second").match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
            const found = [...Array(width * width).keys()].filter((i) =>
                Math.abs(data[4 * i] - r) + Math.abs(data[4 * i + 1] - g) + Math.abs(data[4 * i + 2] - b) < 12);
            const x = found.map((i) => i % width), y = found.map((i) => Math.floor(i / width));
            return [Math.min(...x), Math.min(...y), Math.max(...x), Math.max(...y), width];
        }"""
    )
    assert 0 < left < right < side - 1
    assert 0 < top < bottom < side - 1
    reach = 1.08 * max(map(abs, corners))
    assert right - left == pytest.approx(side * (max(corners[::2]) - min(corners[::2])) / 2 / reach, abs=10)


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


def drag(page, target, dx: float, dy: float) -> None:
    box = target.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + dx / 2, y + dy / 2)
    page.mouse.move(x + dx, y + dy)
    page.mouse.up()


def state(page) -> dict:
    return page.evaluate("report.explorer.state()")


@pytest.mark.parametrize("name", ["stec", "wide", "bare"])
def test_a_crop_is_dragged(visit, name):
    page = visit(name)
    page.locator(".stage").scroll_into_view_if_needed()
    # Room to move: the second crop becomes small, in the middle of the image.
    height, width = state(page)["second"]["source"]
    corner = page.locator(".crop.second .handle")
    drag(page, corner, -2000, -2000)
    page.locator(".crop.second").focus()
    for key in ("ArrowLeft", "ArrowUp"):
        for _ in range(50):
            page.keyboard.press(key)
    assert state(page)["second"]["crop"] == pytest.approx([0, 0, 0.08 * height, 0.08 * width])

    before, shown = state(page), value(page, "egocentric.x")
    stage = page.locator(".stage").bounding_box()
    drag(page, page.locator(".crop.second .frame"), stage["width"] / 4, stage["height"] / 2)
    after = state(page)
    top, left, tall, wide = after["second"]["crop"]
    assert (top, left) == pytest.approx((height / 2, width / 4), rel=0.02)
    assert (tall, wide) == pytest.approx((0.08 * height, 0.08 * width))
    assert after["first"] == before["first"]
    first_width = after["first"]["crop"][3]
    moved = 2 * left / first_width * (-1 if after["first"]["mirrored"] else 1)
    assert value(page, "egocentric.x") - shown == pytest.approx(moved, abs=0.002)
    assert value(page, "allocentric.left") == pytest.approx((left - before["first"]["crop"][1]) / width, abs=0.001)

    drag(page, corner, stage["width"] / 2, stage["height"] / 4)
    assert state(page)["second"]["crop"] == pytest.approx([top, left, tall + height / 4, wide + width / 2], rel=0.03)
    drag(page, page.locator(".crop.second .frame"), 5000, 5000)
    top, left, tall, wide = state(page)["second"]["crop"]
    assert (top + tall, left + wide) == pytest.approx((height, width)), "it stays inside of the image"


def test_a_crop_below_the_other_can_be_taken(visit):
    page = visit("stec")
    page.locator(".crop.first").focus()
    for _ in range(40):
        for key in ("Shift+ArrowLeft", "Shift+ArrowUp"):
            page.keyboard.press(key)
    page.locator(".crop.second").focus()
    for _ in range(50):
        for key in ("ArrowLeft", "ArrowUp", "Shift+ArrowRight", "Shift+ArrowDown"):
            page.keyboard.press(key)
    before = state(page)
    assert before["second"]["crop"] == pytest.approx([0, 0, 32, 32])
    drag(page, page.locator(".crop.first .frame"), 7, 7)
    after = state(page)
    assert after["second"] == before["second"]
    assert after["first"] != before["first"]


def test_a_crop_smaller_than_any_by_hand_stays_inside_of_the_image(visit):
    page = visit("stec")
    page.evaluate(
        """() => {
            const data = structuredClone(report.data.explorer), place = document.getElementById("explorer-place");
            data.starts[0].second.crop = [31, 31, 1, 1];
            report.explorer = explorer.build(place, data, report.data.pictures[data.picture]);
        }"""
    )
    page.locator(".crop.second").focus()
    page.keyboard.press("Shift+ArrowLeft")
    assert state(page)["second"]["crop"] == pytest.approx([31, 31, 1, 1])


def test_a_crop_is_moved_by_keyboard(visit):
    page = visit("stec")
    page.locator(".crop.second").focus()
    mirrored = state(page)["second"]["mirrored"]
    xx = value(page, "egocentric.xx")
    picture = page.locator(".stage-row canvas").nth(1)
    before = picture.evaluate("canvas => canvas.toDataURL()")
    page.keyboard.press("m")
    assert state(page)["second"]["mirrored"] is not mirrored
    assert value(page, "egocentric.xx") == pytest.approx(-xx, abs=1e-3)
    assert picture.evaluate("canvas => canvas.toDataURL()") != before
    for _ in range(60):
        page.keyboard.press("Shift+ArrowLeft")
    assert state(page)["second"]["crop"][3] == pytest.approx(0.08 * 32)
    for _ in range(60):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    assert state(page)["second"]["crop"][1] == pytest.approx(32 / 50)
    assert page.locator(".crop.second").get_attribute("aria-label").startswith("crop x′: left 0.6, top")


def test_moving_both_crops_leaves_the_egocentric_action_alone(visit):
    page = visit("stec")
    for name in ("first", "second"):
        page.locator(f".crop.{name}").focus()
        for key in ("Shift+ArrowLeft", "Shift+ArrowUp"):
            for _ in range(30):
                page.keyboard.press(key)
    page.check("#together")
    page.locator(".crop.first").focus()
    own = [f"egocentric.{part}" for part in ("xx", "x", "yy", "y")]
    before, paper = [value(page, key) for key in own], value(page, "paper.x")
    crop = state(page)["first"]["crop"]
    for key in ("ArrowLeft", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert state(page)["first"]["crop"] != crop
    assert [value(page, key) for key in own] == before
    assert value(page, "paper.x") != paper


def test_another_image_and_a_swap(visit):
    page = visit("stec")
    first = state(page)
    page.click('.thumbs [aria-label="image 5"]')
    chosen = state(page)
    assert chosen != first
    page.click("text=Swap x and x′")
    assert state(page) == {"first": chosen["second"], "second": chosen["first"]}
    page.click("text=Reset")
    assert state(page) == chosen
    page.click("[data-mirror=first]")
    assert state(page)["first"]["mirrored"] is not chosen["first"]["mirrored"]


def test_a_finger_drags_as_well(visit):
    page = visit("stec", **PHONE)
    page.locator(".stage").scroll_into_view_if_needed()
    page.locator(".crop.second").focus()
    for _ in range(30):
        page.keyboard.press("Shift+ArrowLeft")
        page.keyboard.press("Shift+ArrowUp")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowUp")
    box = page.locator(".crop.second .frame").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    session = page.context.new_cdp_session(page)
    for kind, shift in (("touchStart", 0), ("touchMove", 30), ("touchMove", 60), ("touchEnd", None)):
        points = [] if shift is None else [{"x": x + shift, "y": y + shift}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        page.wait_for_timeout(50)  # a finger is slower than a frame
    stage = page.locator(".stage").bounding_box()
    top, left, _, _ = state(page)["second"]["crop"]
    assert (top, left) == pytest.approx((32 * 60 / stage["width"],) * 2, rel=0.05)
