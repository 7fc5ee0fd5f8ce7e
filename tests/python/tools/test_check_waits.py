"""tools/check_waits.py accepts kernels that wait on every path, and finds each mistake in
disassembled code.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from source_tree import in_tree

sys.path.insert(0, str(Path(in_tree("tools/check_waits.py")).parent))
import check_waits
import disassembly


def faults(*lines: str) -> list[str]:
    text = "//--------------------- .text.kernel --------------------------\nkernel:\n"
    for i, line in enumerate(lines):
        text += f"{line}\n" if line.endswith(":") else f"        /*{16 * i:04x}*/                   {line} ;\n"
    (code,) = disassembly.read_kernels(text).values()
    return check_waits.faults(code)


LOAD, STORE = "LDG.E R2, desc[UR4][R2.64]", "STG.E desc[UR4][R4.64], R2"


@pytest.mark.parametrize(
    "lines",
    [
        ("ACQBULK", "PREEXIT", LOAD, STORE, "EXIT"),
        ("STS [R3], R2", "S2R R0, SR_TID.X", "ACQBULK", "@P0 EXIT", LOAD, "EXIT"),
        ("@P0 BRA `(.L_x_1)", "STL [R1], R2", ".L_x_1:", "ACQBULK", STORE, "EXIT"),
        ("ACQBULK", "CALL.REL.NOINC `($f)", "EXIT", "$f:", LOAD, "RET.REL.NODEC R16 `(kernel)"),
        ("ACQBULK", ".L_x_1:", LOAD, "BRA `(.L_x_1)"),
        ("@!P0 CCTL.E.PF2 [R4]", "ACQBULK", LOAD, "EXIT"),  # a prefetch gives the kernel no data
    ],
)
def test_kernels_that_wait_on_every_path_pass(lines: tuple[str, ...]) -> None:
    assert faults(*lines) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((STORE, "EXIT"), "STG"),
        (("EXIT",), "EXIT"),
        ((LOAD, "ACQBULK", "EXIT"), "LDG"),
        (("@P0 EXIT", "ACQBULK", LOAD, "EXIT"), "EXIT"),
        (("@P0 BRA `(.L_x_1)", "ACQBULK", ".L_x_1:", LOAD, "EXIT"), "LDG"),
        (("@P0 ACQBULK", LOAD, "EXIT"), "LDG"),
        (("PREEXIT", "ACQBULK", "EXIT"), "PREEXIT"),
        (("CALL.REL.NOINC `($f)", "ACQBULK", "EXIT", "$f:", "ATOMG.E.ADD R1, R2", "RET.REL.NODEC R16"), "ATOMG"),
        (("BRX R2 -0x100", "ACQBULK", "EXIT"), "unknown address"),
        (("UTMALDG.4D [UR8], [UR4]", "ACQBULK", "EXIT"), "UTMALDG"),
        (("LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64]", "ACQBULK", "EXIT"), "LDGSTS"),
        (("ST.E desc[UR4][R4.64], R2", "ACQBULK", "EXIT"), "ST.E"),
    ],
)
def test_kernels_that_miss_a_wait_fail(lines: tuple[str, ...], said: str) -> None:
    found = faults(*lines)
    assert found
    assert any(said in fault for fault in found)
