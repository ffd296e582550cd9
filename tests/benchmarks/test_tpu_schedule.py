# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Counting bundles, on a schedule small enough to count by hand."""

import pytest

from benchmarks.tpu_schedule import Schedule, busy_units

# Before the grid's loop 1 bundle; in it, of 7 turns: 1 bundle, a copy of 2 under a condition with the 5 of its branch,
# a phase of 3 (and 5) which has a loop of 6 bundles in it, a phase of 2 (and 5), and the 6 of the grid's own end.
TEXT = """
LB: loop body
= control target key end

     0   :  { %s1 = inlined_call_operand.vmem [shape: f32[8,128], index: 0]
second line of a comment } /* Start region 1 */
   0x1 LB: > { %s2 = sadd.s32 1, %s1 }
   0x2   : > { %5 = sbr.rel (%p1) target = $region10 }
   0x3   : > { %6 = snop }
   0x4   : > { %7 = snop }
   0x5   : > { %8 = snop }
   0x6   : > {  }
   0x7   : > { %9 = dma.local }
   0x8   : > { %10 = dma.local } /* End region 11 */
   0x9 PF: > { %11 = sbr.rel (!%p2) target = $region20 } /* Start/End empty region 10 :: Start region 12 */
   0xa   : > { %12 = snop }
   0xb   : > { %13 = snop }
   0xc   : > { %14 = snop }
   0xd   : > {  }
   0xe   : > { %v1 = vpow2.f32 %v0 }
   0xf LB: >> { %p3 = scmp.ge.s32.totalorder %s3, 4 /* loop exit test */ }
  0x10   : > { %15 = sbr.rel (!%p3) target = $region21 }
  0x11   : >> { %16 = snop }
  0x12   : >> { %17 = snop }
  0x13   : >> { %18 = snop }
  0x14   : >> { %19 = vst [vmem:[#allocation2]] %v1 } /* End region 21 */
  0x15   : > { %v2 = vadd.f32 %v1, %v1 }
  0x16   : > { %v3 = vadd.f32 %v1, %v1 }
  0x17 PF: > { %20 = sbr.rel (%p4) target = $region30 } /* Start/End empty region 20 */
  0x18   : > { %21 = snop }
  0x19   : > { %22 = snop }
  0x1a   : > { %23 = snop }
  0x1b   : > {  }
  0x1c   : > { %v4 = vpow2.f32 %v0 }
  0x1d   : > { %v5 = vadd.f32 %v1, %v1 }
  0x1e PF: > { %p5 = scmp.ge.s32.totalorder %s2, 7 /* loop exit test */ } /* Start/End empty region 30 */
  0x1f   : > { %24 = sbr.rel (!%p5) target = $region40 }
  0x20   : > { %25 = snop }
  0x21   : > { %26 = snop }
  0x22   : > { %27 = snop }
  0x23   : > { %28 = snop } /* End region 40 */
  0x24   :  { %29 = sfence }
"""


def test_bundles_count_as_often_as_they_are_issued():
    schedule = Schedule(TEXT)
    assert len(schedule.bundles) == 0x25
    phases = schedule.phases()
    assert [(phase.start, phase.stop) for phase in phases] == [(0xE, 0x17), (0x1C, 0x1E)]
    times = schedule.issued([3, 2])
    assert times[0] == times[0x24] == 1
    assert times[1] == times[7] == times[9] == times[0x23] == 7
    assert times[0xE] == times[0x16] == 3
    assert times[0xF] == times[0x14] == 3 * 4
    assert times[0x1C] == 2
    common = 1 + 5 + 2 + 5 + 5 + 6
    assert sum(times) == 2 + 7 * common + 3 * (3 + 4 * 6) + 2 * 2


def test_another_number_of_phases_is_an_error():
    with pytest.raises(ValueError, match="2 phases in the schedule, 3 expected"):
        Schedule(TEXT).issued([1, 2, 3])


def test_a_loop_without_a_trip_count_is_an_error():
    with pytest.raises(ValueError, match="no trip count"):
        Schedule(TEXT.replace("%s2, 7 /*", "%s2, %s9 /*"))


def test_units_by_slots():
    text = "== CAPACTIY:\nMXU, VALU\n    4     2\n== UTILIZATION:\n1 2\n3 0\n"
    units = busy_units(text, [10, 1])
    assert units == {"MXU": 13 / 4, "VALU": 20 / 2}
