"""The page on a phone, a tablet and a laptop, light and dark: nothing is wider than the screen, every text can be read,
and the keyboard alone is enough."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from visiting import Visit, needs_browser

pytestmark = needs_browser

WIDTHS, SCHEMES = (360, 768, 1280), ("light", "dark")
# every visible text whose contrast with what lies behind it is below 4.5, or 3 where it is large (WCAG 2, level AA)
FAINT = """() => {
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+(e-\\d+)?/g).map(Number);  // rgb(0 to 255) or color(srgb 0 to 1)
    return { rgb: [r, g, b].map((c) => (colour.startsWith("color(srgb") ? 255 * c : c)), a };
  };
  const linear = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const over = (top, a, under) => top.map((c, n) => a * c + (1 - a) * under[n]);
  const behind = (node) => {
    if (!node) return [255, 255, 255];
    const { rgb, a } = parse(getComputedStyle(node).backgroundColor);
    return a === 1 ? rgb : over(rgb, a, behind(node.parentElement));
  };
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), node = walker.currentNode.parentElement;
    if (!text || ["SCRIPT", "STYLE"].includes(node.tagName)) continue;
    if (!node.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (node.closest(":disabled, .gone, [aria-hidden=true]")) continue;
    const style = getComputedStyle(node), drawn = node.closest("svg") !== null;
    const { rgb, a } = parse(drawn ? style.fill : style.color), ground = behind(node);
    const [low, high] = [light(over(rgb, a, ground)), light(ground)].sort((one, two) => one - two);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const contrast = (high + 0.05) / (low + 0.05), where = `${node.tagName}.${node.getAttribute("class")}`;
    if (contrast < (large ? 3 : 4.5)) found.push(`${text.slice(0, 40)} (${where}): ${contrast.toFixed(2)}`);
  }
  return found;
}"""
FOCUSED = "document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.innerText"


@pytest.fixture(scope="module", params=itertools.product(WIDTHS, SCHEMES), ids=lambda each: f"{each[0]}-{each[1]}")
def screen(browser: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Any, int, str]]:
    width, scheme = request.param
    visited = Visit(browser, report, viewport={"width": width, "height": 800}, color_scheme=scheme)
    yield visited.page, width, scheme
    visited.close()


def tab_to(page: Any, name: str) -> None:
    for _ in range(150):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUSED) == name:
            return
    raise AssertionError(f"the keyboard does not reach {name}")


def test_a_sum_is_typed_and_a_head_closed_by_keyboard(screen: tuple[Any, int, str]) -> None:
    page, _, _ = screen
    tab_to(page, "first number")
    page.keyboard.press("Control+A")
    page.keyboard.type("999")
    tab_to(page, "second number")
    page.keyboard.press("Control+A")
    page.keyboard.type("1")
    assert "".join(page.locator(".digit b").all_inner_texts()) == "1000"
    tab_to(page, "gate-encoder.0.self.0")
    page.keyboard.press("Space")
    assert page.locator("#try input[type=checkbox]:not(:checked)").count() == 1
    page.keyboard.press("Space")
    assert page.locator("#try input[type=checkbox]:not(:checked)").count() == 0


def test_nothing_is_wider_than_the_screen_folded_or_not(screen: tuple[Any, int, str]) -> None:
    page, width, scheme = screen
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_text_can_be_read(screen: tuple[Any, int, str]) -> None:
    page, _, _ = screen
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert page.evaluate(FAINT) == []
