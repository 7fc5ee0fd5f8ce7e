"""A plan inside a notebook: a line and a small SVG for each arena. No scripts and no styles of its own: it shows in
viewers that trust nothing."""

from __future__ import annotations

from .._text.escape import markup
from .data import ArenaLike, Picture, bases, curve, peak_moment, size_text, span, verdict

_WIDTH, _HEIGHT = 720, 160
_MOST = 1500  # blocks drawn: the largest; the rest would be less than a pixel
_HUES = (214, 158, 32, 280, 350, 190, 95, 20)


def hue(op: str) -> int:
    """A colour for an op, the same in every picture."""
    return _HUES[sum(op.encode("utf-8", "replace")) % len(_HUES)]


def _arena(arena: ArenaLike, t0: int, t1: int) -> str:
    base = bases(arena.blocks)
    height = max(base[-1], arena.peak, 1)
    sx, sy = _WIDTH / (t1 - t0), _HEIGHT / height
    largest = sorted(arena.blocks, key=lambda b: -b.size * (b.upper - b.lower))[:_MOST]
    parts = []
    for b in largest:
        x, w, h = (b.lower - t0) * sx, (b.upper - b.lower) * sx, b.size * sy
        y = _HEIGHT - (base[b.chunk] + b.offset) * sy - h
        about = markup(f"{b.name} {b.op}, {size_text(b.size)}, nodes {b.lower} to {b.upper - 1}, offset {b.offset}")
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(w, 0.5):.1f}" height="{max(h, 0.5):.1f}" '
            f'fill="hsl({hue(b.op)} 52% 56%)"><title>{about}</title></rect>'
        )
    peak, bound = _HEIGHT - arena.peak * sy, _HEIGHT - arena.lower_bound * sy
    at = (peak_moment(curve(arena.blocks)) - t0 + 0.5) * sx
    lines = (
        f'<path d="M{at:.1f} 0V{_HEIGHT}" stroke-dasharray="1 3"/><path d="M0 {peak:.1f}H{_WIDTH}"/>'
        f'<path d="M0 {bound:.1f}H{_WIDTH}" stroke-dasharray="6 4"/>'
    )
    label = markup(f"Memory of {arena.backend} over time: peak {size_text(arena.peak)}")
    return (
        f'<svg role="img" aria-label="{label}" viewBox="-1 -3 {_WIDTH + 2} {_HEIGHT + 6}" '
        f'style="width:100%;max-width:{_WIDTH}px;height:auto;display:block;margin:4px 0 12px">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="gray" fill-opacity=".12"/>'
        f'<g stroke="#fff" stroke-opacity=".5" stroke-width=".4">{"".join(parts)}</g>'
        f'<g stroke="currentColor" fill="none">{lines}</g></svg>'
    )


def notebook(picture: Picture) -> str:
    """HTML for ``_repr_html_``."""
    t0, t1 = span(picture)
    copied = sum(c.size for c in picture.copies)
    parts = [f"<div><b>{markup(picture.title)}</b>: {picture.n_nodes} nodes"]
    if picture.splits:
        parts.append(f", {len(picture.splits)} splits, {len(picture.copies)} copies ({size_text(copied)})")
    for a in picture.arenas:
        parts.append(
            f"<div><b>{markup(a.backend)}</b> peak {size_text(a.peak)}, {markup(verdict(a))}, {len(a.blocks)} blocks"
        )
        parts.append((_arena(a, t0, t1) if a.blocks else "") + "</div>")
    return "".join(parts) + "</div>"
