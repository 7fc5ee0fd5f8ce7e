"""A picture of the losses, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .trainer import Curves

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 360, 50, 40, 20, 20
TRAINING, VALIDATION = "#9db7d6", "#b3372f"


def smooth(points: Sequence[tuple[int, float]], n: int = 200) -> list[tuple[float, float]]:
    """At most ``n`` points, each the mean of its neighbours."""
    size = max(1, -(-len(points) // n))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(p[0] for p in g) / len(g), sum(p[1] for p in g) / len(g)) for g in groups]


def ticks(low: float, high: float, n: int = 5) -> list[float]:
    """Round numbers between two limits."""
    step = 10.0 ** (len(str(int(max(high - low, 1e-9)))) - 1)
    while (high - low) / step < n:
        step /= 2
    first = -(-low // step)
    return [step * (first + i) for i in range(int((high - step * first) / step) + 1)]


def svg(curves: Curves, title: str) -> str:
    """Draws the training and validation loss by step."""
    lines = [(smooth(curves.training), TRAINING, "training"), (curves.validation, VALIDATION, "validation")]
    points = [p for line, _, _ in lines for p in line] or [(0, 0.0)]
    x1 = max(1.0, max(x for x, _ in points))
    y0, y1 = min(0.0, min(y for _, y in points)), max(1e-3, max(y for _, y in points))

    def place(x: float, y: float) -> str:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / x1
        return f"{across:.1f},{HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (y - y0) / (y1 - y0):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><title>{escape(title)}</title><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    ]
    for y in ticks(y0, y1):
        a, b = place(0, y).split(","), place(x1, y).split(",")
        parts.append(f'<path d="M{",".join(a)} L{",".join(b)}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{float(a[1]) + 4}" text-anchor="end">{y:g}</text>')
    for x in ticks(0, x1):
        across = place(x, y0).split(",")[0]
        parts.append(f'<text x="{across}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">step</text>')
    for i, (line, colour, name) in enumerate(lines):
        way = " ".join(place(x, y) for x, y in line)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        last = f": {line[-1][1]:.3f}" if line else ""
        parts.append(
            f'<text x="{WIDTH - RIGHT - 6}" y="{TOP + 14 + 16 * i}" text-anchor="end" fill="{colour}">'
            f"{name} loss{last}</text>"
        )
    return "\n".join([*parts, "</svg>\n"])
