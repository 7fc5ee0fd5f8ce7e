"""Declarations of devices written in Python: options, names of operators, dtypes, ``missing``."""

from __future__ import annotations

from pathlib import Path

import pytest

import ggml_backend as gb


def options(annotations, future):
    """A class whose __init__ has the parameter ``n`` with each annotation, with and without annotations as texts."""
    names: dict = {"gb": gb}
    begin = "from __future__ import annotations\n" if future else ""
    exec(
        f"{begin}from typing import *\nfrom pathlib import Path\nclass D(gb.devices.Device):\n"
        f"    def __init__(self, n: {annotations} = None): self.n = n\n",
        names,
    )
    gb.devices.register_device("ANNOTATED", names["D"], replace=True)
    return lambda text: gb.Backend(f"ANNOTATED:n={text}").device.n


@pytest.mark.parametrize("future", [False, True])
@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        ("int", "3", 3), ("int | None", "3", 3), ("Optional[int]", "3", 3), ("Union[int, float]", "0.5", 0.5),
        ("float | int", "2", 2), ("float", "2", 2.0), ("bool", "yes", True), ("str", "3", "3"), ("Any", "3", "3"),
        ("str | int", "3", 3), ("str | int", "x", "x"), ("Literal['a', 'b']", "b", "b"), ("Literal[1, 2]", "2", 2),
        ("Annotated[int, 'threads']", "4", 4), ("Path", "a/b", Path("a/b")),
    ],
)  # fmt: skip
def test_texts_are_read_by_annotations(annotation, text, value, future):
    found = options(annotation, future)(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("future", [False, True])
@pytest.mark.parametrize(
    ("annotation", "text", "message"),
    [
        ("int | None", "x", "option n must be int, not 'x'"),
        ("Literal['a', 'b']", "c", "option n must be 'a' or 'b', not 'c'"),
        ("list[int]", "3", "option n has no text: give it as a keyword"),
        ("bool", "3", "option n must be bool"),
    ],
)
def test_invalid_texts_of_options(annotation, text, message, future):
    read = options(annotation, future)
    with pytest.raises(gb.errors.InvalidArgumentError, match=message):
        read(text)


def test_an_option_twice_in_a_text():
    options("int", False)
    with pytest.raises(gb.errors.InvalidArgumentError, match="option n is given twice"):
        gb.Backend("ANNOTATED:n=1,n=2")


@pytest.mark.parametrize(
    ("wrong", "right"), [("matmul", "mul_mat"), ("softmax", "soft_max"), ("rmsnorm", "rms_norm"), ("cosine", "")]
)
def test_unknown_operators_are_refused(wrong, right):
    with pytest.raises(gb.errors.InvalidArgumentError, match=f"there is no operator '{wrong}'.*{right}"):
        gb.devices.op(wrong)


def test_no_dtypes():
    with pytest.raises(gb.errors.InvalidArgumentError, match="dtypes is empty"):
        gb.devices.op("add", dtypes=[])


def test_a_failing_missing_affects_no_other_device():
    class Broken(gb.devices.Device):
        fails = True

        @classmethod
        def missing(cls):
            if cls.fails:
                raise OSError("no driver")

    gb.devices.register_device("BROKEN", Broken)
    try:
        assert gb.backends().missing["BROKEN"].endswith("missing raised OSError: no driver")
        with pytest.raises(gb.GgmlError, match="NOPE"):
            gb.Backend("NOPE")
    finally:
        Broken.fails = False
