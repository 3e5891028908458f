//! The micro-kernel in AMX for f32 in three parts of bf16: 32 x 32 sums, as [`super::amx`] has.
//!
//! Six products of parts are 24 multiplications for 14 loads. Between them there is time for work
//! of other units of the processor: the next operands are packed.

#![allow(unsafe_code)]

use std::arch::asm;

use super::amx::{CELL_BYTES, LANES, SIDE, shape};
use super::beside::Beside;
use super::kernel::{Left, Target};
use super::split::PARTS;

/// Longest run of k in cells of each part that is multiplied at once: 32 rows of so many take less
/// than half of the first cache, so that they stay there while as much of the right operand passes.
pub(super) const DEPTH: usize = 48;

/// Multiplies `rows` rows of `depth` cells, whole registers of each part and those of a row
/// contiguous, with `vectors` vectors per step, and writes or adds the tile of sums.
///
/// # Safety
/// As [`super::kernel::Kernel::multiply`] and [`Beside::step`]; [`super::amx::is_available`] must
/// have said so.
pub(super) unsafe fn multiply(
    target: Target<f32>,
    (rows, vectors, depth): (usize, usize, usize),
    left: Left<f32>,
    right: *const f32,
    beside: Option<&mut Beside>,
) {
    debug_assert_eq!(left.step_bytes, CELL_BYTES, "cells of a row are contiguous");
    debug_assert!(depth > 0 && depth.is_multiple_of(PARTS * SIDE), "whole registers of each part");
    let tile = if vectors == 1 { tile::<1> } else { tile::<2> };
    // SAFETY: whole registers of each row's cells; the kernel is chosen where the processor has the
    // instructions of tiles and those that split.
    unsafe {
        shape(rows, SIDE);
        tile(target, (rows, depth / (PARTS * SIDE)), left, right, beside);
    }
}

/// Where a round's operands and the sums are.
#[derive(Clone, Copy)]
struct Places {
    /// Both halves of the left operand's rows, and from one row to the next in bytes.
    upper: *const f32,
    lower: *const f32,
    row: usize,
    right: *const f32,
    /// Both halves of the sums, and from one row to the next in bytes.
    to: *mut f32,
    to_lower: *mut f32,
    to_row: usize,
}

/// Instructions on the registers, with VECTORS of the right operand. Registers keep what they hold
/// from one call to the next. Rust does not promise that, but only assembler uses them.
macro_rules! registers {
    ($at:expr, $($instruction:literal),+ $(,)?) => {
        asm!(
            $($instruction,)+
            "# {upper} {lower} {row} {right} {right_row} {to} {to_lower} {to_row}",
            "# {second} {part}",
            upper = in(reg) $at.upper,
            lower = in(reg) $at.lower,
            row = in(reg) $at.row,
            right = in(reg) $at.right,
            right_row = in(reg) VECTORS * LANES * CELL_BYTES,
            to = in(reg) $at.to,
            to_lower = in(reg) $at.to_lower,
            to_row = in(reg) $at.to_row,
            second = const (VECTORS - 1) * LANES * CELL_BYTES,
            part = const VECTORS * LANES * CELL_BYTES * SIDE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// For whole registers of the shapes that they have. Where there is but one half of rows, or one
/// vector, it does the same twice: only at edges.
///
/// # Safety
/// As [`multiply`].
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn tile<const VECTORS: usize>(
    target: Target<f32>,
    (rows, rounds): (usize, usize),
    left: Left<f32>,
    right: *const f32,
    mut beside: Option<&mut Beside>,
) {
    let half = if rows > SIDE { SIDE } else { 0 };
    let mut at = Places {
        upper: left.start,
        lower: left.start.wrapping_byte_add(half * left.row_bytes),
        row: left.row_bytes,
        right,
        to: target.start,
        to_lower: target.start.wrapping_add(half * target.row),
        to_row: target.row * CELL_BYTES,
    };
    // SAFETY: the registers are shaped for what the caller lets this read and write.
    unsafe {
        if target.accumulate {
            registers!(
                at,
                "tileloadd tmm0, [{to} + {to_row}]",
                "tileloadd tmm1, [{to} + {to_row} + {second}]",
                "tileloadd tmm2, [{to_lower} + {to_row}]",
                "tileloadd tmm3, [{to_lower} + {to_row} + {second}]",
            );
        } else {
            registers!(at, "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3");
        }
        for _ in 0..rounds {
            round::<VECTORS>(at, || {
                if let Some(beside) = &mut beside {
                    beside.step();
                }
            });
            at.upper = at.upper.wrapping_add(PARTS * SIDE);
            at.lower = at.lower.wrapping_add(PARTS * SIDE);
            at.right = at.right.wrapping_add(PARTS * SIDE * VECTORS * LANES);
        }
        registers!(
            at,
            "tilestored [{to} + {to_row}], tmm0",
            "tilestored [{to} + {to_row} + {second}], tmm1",
            "tilestored [{to_lower} + {to_row}], tmm2",
            "tilestored [{to_lower} + {to_row} + {second}], tmm3",
        );
    }
}

/// Multiplies left with right part 2 0, 1 0, 1 1, 0 1, 0 2 and 0 0 of 16 cells. From one to the
/// next one operand changes, and the largest products come last.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn round<const VECTORS: usize>(at: Places, mut meanwhile: impl FnMut()) {
    // SAFETY: as this function.
    unsafe {
        registers!(
            at,
            "tileloadd tmm4, [{upper} + {row} + 128]",
            "tileloadd tmm6, [{right} + {right_row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{right} + {right_row} + {second}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{lower} + {row} + 128]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
        );
        meanwhile();
        registers!(
            at,
            "tileloadd tmm4, [{upper} + {row} + 64]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{lower} + {row} + 64]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
        );
        meanwhile();
        registers!(
            at,
            "tileloadd tmm6, [{right} + {right_row} + {part}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tileloadd tmm7, [{right} + {right_row} + {part} + {second}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
        );
        meanwhile();
        registers!(
            at,
            "tileloadd tmm4, [{upper} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{lower} + {row}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
        );
        meanwhile();
        registers!(
            at,
            "tileloadd tmm6, [{right} + {right_row} + 2 * {part}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tileloadd tmm7, [{right} + {right_row} + 2 * {part} + {second}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
        );
        meanwhile();
        registers!(
            at,
            "tileloadd tmm6, [{right} + {right_row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tileloadd tmm7, [{right} + {right_row} + {second}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
        );
        meanwhile();
    }
}
