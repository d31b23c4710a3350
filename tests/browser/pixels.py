"""Contrast of texts, measured from two screenshots: with the texts, and with them transparent.

Computed styles do not see opacity, gradients, or text that something else covers; pixels do.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from playwright.sync_api import Locator, Page

Pixels = npt.NDArray[np.uint8]
Lights = npt.NDArray[np.float64]
_TEXTS = """
root => {
  const base = root.getBoundingClientRect();
  const isSeen = (node, box) => {
    const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    return hit && node.contains(hit);
  };
  const boxesOf = (node) => {
    if (node.matches("button, input, textarea, select")) return [node.getBoundingClientRect()];
    const texts = [...node.childNodes].filter((one) => one.nodeType === 3 && one.data.trim());
    return texts.flatMap((text) => {
      const range = document.createRange();
      range.selectNodeContents(text);
      return [...range.getClientRects()];
    });
  };
  const found = [];
  for (const node of root.querySelectorAll("*")) {
    const isText = [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
    if (!isText && !node.matches(".nba-do, textarea, select, input")) continue;
    if (!node.checkVisibility() || getComputedStyle(node).fontSize === "0px") continue;
    if (node.closest("style, option, .nba-announcer, select :not(:checked)")) continue;
    if (node.matches("[type=checkbox]")) continue;
    const boxes = boxesOf(node).filter((one) => one.width > 3 && one.height > 3);
    const [box] = boxes.filter((one) => isSeen(node, one)).sort((a, b) => b.width - a.width);
    if (!box) continue;
    const name = `${node.localName}.${node.className}${node.disabled ? " (disabled)" : ""}`;
    const texts = [node.value, node.textContent, node.placeholder, node.title];
    const text = texts.find((one) => one?.trim())?.trim().slice(0, 30);
    if (!text) continue;
    found.push({ name, text, box: [box.x - base.x, box.y - base.y, box.width, box.height] });
  }
  return found;
}
"""
_HIDE = """
:is(*, #nba), :is(*, #nba)::before, :is(*, #nba)::after, :is(*, #nba)::placeholder {
  color: transparent !important; -webkit-text-fill-color: transparent !important;
  text-decoration-color: transparent !important; caret-color: transparent !important;
  transition: none !important;
}
"""
_NEXT_FRAME = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


@dataclass(frozen=True, slots=True)
class TextContrast:
    """A text on the page and its contrast to the pixels behind it, from 1 to 21."""

    name: str
    text: str
    ratio: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f} {self.name} {self.text!r}"


def contrasts(page: Page, root: Locator) -> list[TextContrast]:
    """Measure each visible text below a root that fits into the page's window.

    The page needs a device scale of 2 or more: otherwise thin strokes of small text are mixed with
    their ground.
    """
    # What takes no clicks is not found at its point.
    clicks = page.add_style_tag(content=":is(*, #nba) { pointer-events: auto !important }")
    texts: list[dict[str, Any]] = root.evaluate(_TEXTS)
    clicks.evaluate("node => node.remove()")
    shown = _screenshot(root)
    style = page.add_style_tag(content=_HIDE)
    page.evaluate(_NEXT_FRAME)
    ground = _screenshot(root)
    style.evaluate("node => node.remove()")
    box = root.bounding_box()
    assert box is not None
    scale = shown.shape[1] / box["width"]
    return [
        TextContrast(one["name"], one["text"], _ratio(*_cut(shown, ground, one["box"], scale)))
        for one in texts
    ]


def too_low(measured: list[TextContrast], least: float = 4.5) -> list[str]:
    """List the texts below a contrast, each name once."""
    # A hundredth: a screenshot has whole numbers for colours.
    low = {one.name: str(one) for one in measured if one.ratio < least - 0.05}
    return sorted(low.values())


def _screenshot(root: Locator) -> Pixels:
    shot = Image.open(io.BytesIO(root.screenshot(animations="disabled"))).convert("RGB")
    return np.asarray(shot)


def _cut(shown: Pixels, ground: Pixels, box: list[float], scale: float) -> tuple[Pixels, Pixels]:
    left, top, width, height = (round(side * scale) for side in box)
    rows, columns = slice(max(top, 0), top + height), slice(max(left, 0), left + width)
    return shown[rows, columns], ground[rows, columns]


def _ratio(text: Pixels, ground: Pixels) -> float:
    """The contrast of the strokes' cores to what is behind them."""
    lights = np.sort(np.stack([_luminance(text), _luminance(ground)]), axis=0)
    ratios = (lights[1] + 0.05) / (lights[0] + 0.05)
    strokes = ratios[(text != ground).any(axis=2)]
    return float(np.percentile(strokes, 90)) if strokes.size else 1.0


def _luminance(pixels: Pixels) -> Lights:
    parts = pixels / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])
