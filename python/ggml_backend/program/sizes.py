"""Sizes that depend on names: ``Formula`` and the text that files hold.

A network may have axes such as "batch" and "tokens". A size is then an integer or a formula of these names. Formulas
are sums of products of atoms, in one order, so equal polynomials are equal objects. An atom is a name, or one of
``//``, ``%``, ``max``, ``min`` of two sizes that cannot be simplified.

The text has integers, names (letters, digits, ``_`` and ``.``), ``+ - * // %``, ``max(a, b)``, ``min(a, b)`` and
parentheses, with the meaning of Python.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

__all__ = ["Formula", "Size", "at", "identifier", "largest", "name_of", "names_in", "parsed", "smallest", "text_of"]

Size = Union[int, "Formula"]
Atom = Union[str, "tuple[str, Size, Size]"]
Terms = tuple[tuple[tuple[Atom, ...], int], ...]

_LONGEST = 2000  # characters of a text; also bounds the time that a hostile file can cost
_DEEPEST = 40  # parentheses within each other
_MOST_TERMS = 100
_LARGEST = 2**63  # of a number in a text
_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][\w.]*)|(//|[-+*%(),]))")


@dataclass(frozen=True, eq=True)
class Formula:
    """terms: products of atoms, and the integers by which they are multiplied; sorted"""

    terms: Terms

    def __add__(self, other: Size) -> Size:
        return _sum(_terms(self) + _terms(other))

    def __sub__(self, other: Size) -> Size:
        return self + -1 * other

    def __rsub__(self, other: Size) -> Size:
        return -1 * self + other

    def __neg__(self) -> Size:
        return self * -1

    def __mul__(self, other: Size) -> Size:
        return _sum(
            tuple((tuple(sorted(p + q, key=repr)), n * m) for p, n in self.terms for q, m in _terms(other))
        )  # fmt: skip

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return _quotient(self, other)

    def __rfloordiv__(self, other: Size) -> Size:
        return _quotient(other, self)

    def __mod__(self, other: Size) -> Size:
        return _rest(self, other)

    def __rmod__(self, other: Size) -> Size:
        return _rest(other, self)

    def __bool__(self) -> bool:
        return True  # as a size that is not known to be 0

    def __str__(self) -> str:
        return text_of(self)

    def __repr__(self) -> str:
        return f"<size {text_of(self)}>"


def name_of(name: str) -> Formula:
    """The size that has this name."""
    return Formula((((name,), 1),))


def identifier(label: str) -> str:
    """The label as a name that formulas accept."""
    name = re.sub(r"[^\w.]", "_", label, flags=re.ASCII)
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"


def largest(p: Size, q: Size) -> Size:
    return max(p, q) if isinstance(p, int) and isinstance(q, int) else p if p == q else _atom("max", p, q)


def smallest(p: Size, q: Size) -> Size:
    return min(p, q) if isinstance(p, int) and isinstance(q, int) else p if p == q else _atom("min", p, q)


def _terms(size: Size) -> Terms:
    return size.terms if isinstance(size, Formula) else (((), int(size)),)


def _sum(terms: Terms) -> Size:
    total: dict[tuple[Atom, ...], int] = {}
    for atoms, n in terms:
        total[atoms] = total.get(atoms, 0) + n
    kept = {atoms: n for atoms, n in total.items() if n}
    if len(kept) > _MOST_TERMS:
        raise ValueError(f"a size has more than {_MOST_TERMS} terms")
    if not kept or [*kept] == [()]:
        return kept.get((), 0)
    return _checked(Formula(tuple(sorted(kept.items(), key=repr))))


def _atom(operator: str, p: Size, q: Size) -> Formula:
    return _checked(Formula(((((operator, p, q),), 1),)))


def _checked(formula: Formula) -> Formula:
    if len(text_of(formula)) > _LONGEST:
        raise ValueError(f"a size takes more than {_LONGEST} characters")
    return formula


def _quotient(p: Size, q: Size) -> Size:
    if isinstance(p, int) and isinstance(q, int):
        return p // q
    if q == 0:
        raise ZeroDivisionError("a size is divided by 0")
    if q == 1:
        return p
    if p == q:
        return 1
    whole, rest = _divided(p, q)
    return whole if rest == 0 else whole + _atom("//", rest, q)


def _rest(p: Size, q: Size) -> Size:
    if isinstance(p, int) and isinstance(q, int):
        return p % q
    if q == 0:
        raise ZeroDivisionError("a size is divided by 0")
    _, rest = _divided(p, q)
    return 0 if rest == 0 else rest % q if isinstance(rest, int) and isinstance(q, int) else _atom("%", rest, q)


def _divided(p: Size, q: Size) -> tuple[Size, Size]:
    """The terms of p that are multiples of q, divided by q, and the others."""
    if isinstance(q, Formula) and len(q.terms) != 1:
        return 0, p
    ((atoms, n),) = _terms(q)
    whole: list[Any] = []
    rest: list[Any] = []
    for product, m in _terms(p):
        left = list(product)
        for atom in atoms:
            if atom not in left:
                break
            left.remove(atom)
        else:
            if n and m % n == 0:
                whole.append((tuple(left), m // n))
                continue
        rest.append((product, m))
    return _sum(tuple(whole)), _sum(tuple(rest))


def names_in(size: Size) -> set[str]:
    found: set[str] = set()
    for atoms, _ in _terms(size):
        for atom in atoms:
            found |= {atom} if isinstance(atom, str) else names_in(atom[1]) | names_in(atom[2])
    return found


def at(size: Size, sizes: Mapping[str, int]) -> int:
    """The value for these sizes. ArithmeticError: a division by 0; KeyError: an unknown name."""
    if isinstance(size, int):
        return size
    total = 0
    for atoms, n in size.terms:
        for atom in atoms:
            if isinstance(atom, str):
                n *= sizes[atom]
                continue
            operator, p, q = atom[0], at(atom[1], sizes), at(atom[2], sizes)
            n *= p // q if operator == "//" else p % q if operator == "%" else (max if operator == "max" else min)(p, q)
        total += n
    return total


def text_of(size: Size) -> str:
    if isinstance(size, int):
        return str(size)
    parts = []
    for atoms, n in size.terms:
        factors = [_text_of_atom(atom) for atom in atoms]
        parts.append("*".join([str(n), *factors] if n != 1 or not factors else factors))
    return " + ".join(parts)


def _text_of_atom(atom: Atom) -> str:
    if isinstance(atom, str):
        return atom
    operator, p, q = atom[0], text_of(atom[1]), text_of(atom[2])
    return f"{operator}({p}, {q})" if operator in ("max", "min") else f"(({p}) {operator} ({q}))"


def parsed(text: str) -> Size:
    """The size of a text. ValueError or ZeroDivisionError: the text is no formula."""
    if len(text) > _LONGEST:
        raise ValueError(f"a size of {len(text)} characters")
    tokens: list[str] = []
    place = 0
    while text[place:].strip():
        found = _TOKEN.match(text, place)
        if found is None:
            raise ValueError(f"{text!r} is no size")
        tokens.append(found[0].strip())
        place = found.end()
    reader = _Reader(tokens)
    size = reader.sum()
    if reader.tokens:
        raise ValueError(f"{text!r} is no size")
    return size


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.depth = tokens[::-1], 0

    def next(self, expected: str = "") -> str:
        token = self.tokens.pop() if self.tokens else ""
        if not token or (expected and token != expected):
            raise ValueError(f"a size has {token or 'its end'!r} instead of {expected or 'a number'!r}")
        return token

    def seen(self, *tokens: str) -> str:
        return self.tokens.pop() if self.tokens and self.tokens[-1] in tokens else ""

    def sum(self) -> Size:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ValueError("a size has too many parentheses")
        total = self.product()
        while operator := self.seen("+", "-"):
            other = self.product()
            total = total + other if operator == "+" else total - other
        self.depth -= 1
        return total

    def product(self) -> Size:
        total = self.factor()
        while operator := self.seen("*", "//", "%"):
            other = self.factor()
            total = total * other if operator == "*" else total // other if operator == "//" else total % other
        return total

    def factor(self) -> Size:
        sign = 1
        while self.seen("-"):
            sign = -sign
        token = self.next()
        if token.isdigit():
            number = int(token)
            if number >= _LARGEST:
                raise ValueError(f"a size is {token}")
            size: Size = number
        elif token == "(":
            size = self.sum()
            self.next(")")
        elif token in ("max", "min") and self.seen("("):
            p = self.sum()
            self.next(",")
            size = (largest if token == "max" else smallest)(p, self.sum())
            self.next(")")
        elif token[0].isalpha() or token[0] == "_":
            size = name_of(token)
        else:
            raise ValueError(f"a size has {token!r} instead of a number")
        return size * sign
