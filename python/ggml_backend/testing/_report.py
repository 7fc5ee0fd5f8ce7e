"""The result of :func:`ggml_backend.testing.check_device` as an object, as text and as a table for notebooks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .._base.text import line, markup

__all__ = ["COLUMNS", "CheckedCase", "DeviceReport", "Outcome"]

Outcome = Literal["passed", "failed", "refused", "skipped"]
COLUMNS = ("float32", "float16", "bfloat16", "integers", "quantized", "other")
_SHOWN = 20  # failures, and reasons of refusal, in a printed report
_DETAILS = re.compile(r"'[^']*'|\([\d, ]*\)|\d[\d.e+-]*")  # names, shapes and numbers, which differ in similar messages


@dataclass(frozen=True)
class CheckedCase:
    """One check."""

    name: str
    """The name that ``only=`` selects. Equal seeds give equal cases."""
    group: str
    """``"operators"``, ``"refusals"``, ``"special values"``, ``"memory"`` or ``"graphs"``."""
    op: str
    """The operation; in other groups the subject of the check."""
    dtype: str
    """The dtype of the first source; ``""`` in other groups."""
    outcome: Outcome
    """The outcome. ``"refused"``: the device does not support it. ``"skipped"``: nothing could be checked."""
    message: str = ""
    """The failure, or the reason for a refusal or skip. For an exception also the line that raised it."""

    @property
    def column(self) -> str:
        """The column of the case in the table."""
        if self.dtype in COLUMNS:
            return self.dtype
        if not self.dtype:
            return "other"
        return "integers" if self.dtype.startswith("int") else "quantized" if self.dtype != "float64" else "other"


@dataclass(frozen=True)
class DeviceReport:
    """The result of :func:`ggml_backend.testing.check_device`: every case, and a table of them as ``str()`` and in
    notebooks."""

    device: str
    """The given name: ``"SIM:mem=64M"``. For a backend: its own name."""
    seed: int
    quick: bool
    cases: Sequence[CheckedCase] = field(repr=False)
    call: str = field(default="", repr=False)
    """The arguments of the call, without seed, ``quick`` and ``only``."""

    def _of(self, outcome: Outcome) -> list[CheckedCase]:
        return [c for c in self.cases if c.outcome == outcome]

    @property
    def ok(self) -> bool:
        """True if no check failed and at least one ran."""
        return not self.failed and bool(self.passed)

    @property
    def passed(self) -> list[CheckedCase]:
        return self._of("passed")

    @property
    def failed(self) -> list[CheckedCase]:
        return self._of("failed")

    @property
    def refused(self) -> list[CheckedCase]:
        """The refused cases. ``message`` is the reason."""
        return self._of("refused")

    @property
    def skipped(self) -> list[CheckedCase]:
        return self._of("skipped")

    def __repr__(self) -> str:
        return f"<DeviceReport {line(self._summary())}>"

    def reproduce(self, case: CheckedCase) -> str:
        """The call that runs only this case, with the same inputs."""
        quick = ", quick=True" if self.quick else ""
        return f"gb.testing.check_device({self.call}, seed={self.seed}{quick}, only={case.name!r})"

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-compatible data."""
        counts = Counter(c.outcome for c in self.cases)
        return {
            "check": "device", "format": 1, "device": self.device, "seed": self.seed, "quick": self.quick,
            "ok": self.ok, "counts": {k: counts[k] for k in ("passed", "failed", "refused", "skipped")},
            "cases": [
                {**asdict(c), **({"reproduce": self.reproduce(c)} if c.outcome == "failed" else {})}
                for c in self.cases
            ],
        }  # fmt: skip

    # ---- shown -------------------------------------------------------------------------------------------------------

    def _rows(self) -> list[tuple[str, list[str]]]:
        """The table: operators by dtypes, then the other groups. Rows that are refused entirely are left out."""
        used = [c for c in COLUMNS if any(case.column == c for case in self.cases)]
        rows: dict[str, dict[str, Counter[str]]] = {}
        for case in self.cases:
            name = f"{case.op} (special values)" if case.group == "special values" else case.op
            rows.setdefault(name, {}).setdefault(case.column, Counter())[case.outcome] += 1
        found = [("", used)]
        for name, of in rows.items():
            if any(counts["refused"] < sum(counts.values()) for counts in of.values()):
                found.append((name, [_cell(of.get(column)) for column in used]))
        return found

    def _summary(self) -> str:
        counts = Counter(c.outcome for c in self.cases)
        outcomes = [f"{counts[kind]} {kind}" for kind in ("passed", "failed", "refused", "skipped") if counts[kind]]
        verdict = "ok" if self.ok else "FAILED" if self.failed else "nothing was checked"
        return f"{self.device}: {verdict}: {', '.join(outcomes) or 'no cases'} (seed {self.seed})"

    def _reasons(self) -> list[tuple[str, int, str]]:
        """The reasons for refusals, with their number and the operations, most frequent first."""
        found: dict[str, Counter[str]] = {}
        for case in self.refused:
            found.setdefault(case.message, Counter())[case.op] += 1
        ordered = sorted(found.items(), key=lambda item: -sum(item[1].values()))
        return [(why, sum(of.values()), ", ".join(of)) for why, of in ordered]

    def _failures(self) -> list[list[CheckedCase]]:
        """The failures. Those of one operation with similar messages are merged."""
        found: dict[tuple[str, str], list[CheckedCase]] = {}
        for case in self.failed:
            found.setdefault((case.op, _DETAILS.sub("#", case.message)), []).append(case)
        return list(found.values())

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[0]) for row in rows), *(max(len(r[1][i]) for r in rows) for i in range(len(rows[0][1])))]
        text = [line(self._summary()), ""]
        for name, cells in rows:
            padded = [name.ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells, widths[1:], strict=True))]
            text.append(line("  ".join(padded).rstrip()))
        if self.refused:
            text += ["", "refused:"]
            text += [line(f"  {n:6}  {why}: {of}", 160) for why, n, of in self._reasons()[:_SHOWN]]
        failures = self._failures()
        for first, *others in failures[:_SHOWN]:
            text += ["", line(f"FAILED {first.name}: {first.message}"), line(f"  {self.reproduce(first)}")]
            if others:
                text.append(line(f"  and in the same way {len(others)} more: {' '.join(c.name for c in others)}", 160))
        if len(failures) > _SHOWN:
            text += ["", f"... and {sum(map(len, failures[_SHOWN:]))} more"]
        return "\n".join(text)

    def _repr_html_(self) -> str:
        rows = self._rows()
        head = "".join(f"<th>{markup(c)}</th>" for c in ("", *rows[0][1]))
        body = "".join(
            f"<tr><th>{markup(name)}</th>{''.join(f'<td>{markup(c)}</td>' for c in cells)}</tr>"
            for name, cells in rows[1:]
        )
        failed = "".join(
            f"<li>{markup(c.name)}{f' and {len(others)} more' * bool(others)}: {markup(c.message)}"
            f"<br><code>{markup(self.reproduce(c))}</code></li>"
            for c, *others in self._failures()[:_SHOWN]
        )
        refused = "".join(
            f"<li>refused, {n}: {markup(why)}: {markup(of)}</li>" for why, n, of in self._reasons()[:_SHOWN]
        )
        return f"<p>{markup(self._summary())}</p><table><tr>{head}</tr>{body}</table><ul>{failed}{refused}</ul>"


def _cell(counts: Counter[str] | None) -> str:
    """``"12"``: all passed; ``"2 FAILED of 12"``; ``"12, 3 refused"``."""
    if not counts:
        return "."
    checked = counts["passed"] + counts["failed"]
    if counts["failed"]:
        return f"{counts['failed']} FAILED of {checked}"
    others = [kind if not checked else f"{counts[kind]} {kind}" for kind in ("refused", "skipped") if counts[kind]]
    return ", ".join([str(checked), *others] if checked else others)
