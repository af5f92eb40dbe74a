"""The action explorer in a real browser: its arithmetic, and crops that are moved by mouse, keys and fingers."""

import pytest
import torch

from stec.actions import REPRESENTATIONS, Bins, EfferenceCopy, Glimpse, quadrilateral
from stec.config import load

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def value(page, key: str) -> float:
    return float(page.text_content(f'[data-value="{key}"]').replace("−", "-"))


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
