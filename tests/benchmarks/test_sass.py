# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Loops and classes of instructions, from a small program in the form that nvdisasm prints."""

import pytest

from benchmarks.sass import count, loops, parse, quantized_loop

PROGRAM = """
	.headerflags	@"EF_CUDA_TEXMODE_UNIFIED"
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_1) ;
.L_x_0:
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R6, R4 ;
        /*0040*/               @P1 BRA `(.L_x_0) ;
.L_x_1:
        /*0050*/                   LOP3.LUT R5, R4, 0x30003, R6, 0xea, !PT ;
        /*0060*/                   HFMA2 R5, R5, R7.H0_H0, R8 ;
        /*0070*/             @!UP0 HFMA2.BF16_V2 R6, R5, R7, R8 ;
        /*0080*/                   MUFU.EX2 R9, R6 ;
        /*0090*/                   I2F.U16 R9, R6 ;
        /*00a0*/                   IMAD.MOV.U32 R9, RZ, RZ, R6 ;
        /*00b0*/                   STL [R1+0x4], R9 ;
        /*00c0*/               @P1 BRA `(.L_x_1) ;
        /*00d0*/                   EXIT ;
.L_x_2:
        /*00e0*/                   BRA `(.L_x_2) ;
"""


def test_loops():
    """Backward jumps make loops; a forward jump and the jump to itself at a program's end do not."""
    instructions, labels = parse(PROGRAM)
    assert len(instructions) == 15
    assert loops(instructions, labels) == [(2, 4), (5, 12)]


def test_classes():
    """Of the loop that computes on pairs of 16-bit floats; conversions from integer run at a quarter of the rate."""
    kinds, quarter = count(quantized_loop(*parse(PROGRAM)))
    assert kinds == {"integer": 2, "half": 2, "quarter": 2, "spill": 1, "branch": 1}
    assert quarter == {"MUFU": 1, "I2F": 1}


def test_a_program_without_such_a_loop_is_an_error():
    with pytest.raises(ValueError, match="quantized windows"):
        quantized_loop(*parse(PROGRAM.replace("HFMA2", "FFMA")))
