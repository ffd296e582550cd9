# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Machine programs of NVIDIA GPUs as ``nvdisasm -c`` prints them: instructions, loops and classes of instructions."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

_LABEL = re.compile(r"^\s*\.(L_\w+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_TARGET = re.compile(r"`\(\.(L_\w+)\)")

# Classes by the first part of an opcode. "quarter" has its units run at a quarter of the rate of float32, or less.
_CLASSES = {
    "tensor": ("HMMA", "IMMA", "QMMA", "HGMMA", "WARPGROUP", "UTCHMMA", "UTCQMMA"),
    "half": ("HFMA2", "HADD2", "HMUL2", "HMNMX2", "HSET2", "HSETP2"),
    "float32": ("FFMA", "FMUL", "FADD", "FSEL", "FMNMX", "FSET", "FSETP", "FCHK", "FMNMX3", "FFMA2", "FMUL2", "FADD2"),
    "convert": ("F2FP", "I2FP"),
    "quarter": ("MUFU", "I2F", "F2I", "F2F", "I2I", "FRND", "POPC", "FLO", "BREV"),
    "shared": ("LDS", "STS", "LDSM", "STSM", "ATOMS", "SHFL", "REDUX"),
    "global": ("LDG", "STG", "LDGSTS", "LDGDEPBAR", "ATOMG", "RED", "LDC", "LDCU", "UTMALDG"),
    "spill": ("LDL", "STL"),
    "wait": ("BAR", "DEPBAR", "WARPSYNC", "BSYNC", "BSSY", "SYNCS", "MEMBAR", "NOP", "YIELD"),
    "branch": ("BRA", "CALL", "RET", "EXIT", "BRX"),
}
_CLASS = {name: kind for kind, names in _CLASSES.items() for name in names}


class Instruction(NamedTuple):
    """``opcode`` with its modifiers, e.g. "HFMA2.BF16_V2", and operands as text."""

    opcode: str
    operands: str

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.split(".")[0]

    @property
    def kind(self) -> str:
        """Its class; whatever is in no other is "integer": logic, shifts, addresses, moves, predicates."""
        return _CLASS.get(self.name, "integer")


def parse(text: str) -> tuple[list[Instruction], dict[str, int]]:
    """Instructions, and for every label the index of the instruction behind it."""
    instructions, labels = [], {}
    for line in text.splitlines():
        if found := _LABEL.match(line):
            labels[found[1]] = len(instructions)
        elif found := _INSTRUCTION.search(line):
            instructions.append(Instruction(found[1], found[2].strip()))
    return instructions, labels


def loops(instructions: list[Instruction], labels: dict[str, int]) -> list[tuple[int, int]]:
    """First and last index of every loop: from the target of a jump back to the jump. A jump to itself is the end of
    the program."""
    found = []
    for index, instruction in enumerate(instructions):
        target = _TARGET.search(instruction.operands) if instruction.name == "BRA" else None
        if target and labels[target[1]] < index:
            found.append((labels[target[1]], index))
    return found


def quantized_loop(instructions: list[Instruction], labels: dict[str, int]) -> list[Instruction]:
    """The loop of the decode kernel that unpacks codes: the one with most arithmetic on pairs of 16-bit floats.

    Raises:
        ValueError: no loop has any such arithmetic.
    """
    spans = loops(instructions, labels)
    first, last = max(spans, key=lambda span: _pairs(instructions[span[0] : span[1] + 1]), default=(0, -1))
    body = instructions[first : last + 1]
    if not _pairs(body):
        raise ValueError("the program has no loop over quantized windows")
    return body


def _pairs(body: Iterable[Instruction]) -> int:
    return sum(x.kind == "half" for x in body)


def count(body: Iterable[Instruction]) -> tuple[Counter[str], Counter[str]]:
    """Instructions by class, and those at a quarter of the rate by opcode."""
    body = list(body)
    return Counter(x.kind for x in body), Counter(x.name for x in body if x.kind == "quarter")
