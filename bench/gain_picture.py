"""The picture of `bench gain`: held-out accuracy against generated tokens, an SVG made of outcomes alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from bench.gain_curves import Arms, Outcome, by_regime, mean_curve

WIDTH, HEIGHT, EDGE = 720, 320, 44  # of a regime, in pixels
LEGEND = 200  # pixels on its right
COLOURS = ("#1b1b1b", "#c0392b", "#2471a3", "#1e8449", "#b7950b", "#7d3c98", "#ca6f1e", "#117a65", "#884ea0", "#5d6d7e")


def draw(outcomes: Sequence[Outcome]) -> str:
    """The mean curve of each arm, the regimes below each other."""
    regimes = by_regime(outcomes)
    names = sorted({outcome.arm for outcome in outcomes})
    colours = dict(zip(names, cycle(COLOURS), strict=False))
    parts = [_draw_regime(regime, regimes[regime], colours, place) for place, regime in enumerate(regimes)]
    height = HEIGHT * len(parts)
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">'
    ground = f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    return "\n".join([frame, ground, *parts, "</svg>"]) + "\n"


def _draw_regime(regime: str, arms: Arms, colours: dict[str, str], place: int) -> str:
    curves = {arm: mean_curve(list(found.values())) for arm, found in arms.items()}
    widest = max(max(tokens) for tokens, _ in curves.values()) or 1
    highest = max(max(values) for _, values in curves.values()) or 1.0
    wide, high = WIDTH - LEGEND - EDGE, HEIGHT - 2 * EDGE
    shift = place * HEIGHT + EDGE
    parts = [f'<text x="{EDGE}" y="{shift - 14}" font-size="14">{regime}: held-out accuracy, tokens</text>']
    parts.append(f'<path d="M{EDGE} {shift}v{high}h{wide}" fill="none" stroke="#888"/>')
    parts.append(f'<text x="4" y="{shift + 10}" font-size="11">{highest:.2f}</text>')
    parts.append(f'<text x="{EDGE + wide - 50}" y="{shift + high + 16}" font-size="11">{widest:,.0f}</text>')
    for row, (arm, (tokens, values)) in enumerate(curves.items()):
        points = " ".join(
            f"{EDGE + wide * x / widest:.1f},{shift + high * (1 - y / highest):.1f}"
            for x, y in zip(tokens, values, strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[arm]}" stroke-width="1.6"/>')
        y = shift + 10 + 16 * row
        parts.append(f'<text x="{EDGE + wide + 12}" y="{y}" font-size="12" fill="{colours[arm]}">{arm}</text>')
    return "\n".join(parts)
