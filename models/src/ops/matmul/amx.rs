//! Micro-kernels in AMX: 32 x 32 sums of pairs of bf16 in four of the eight tile registers.
//!
//! A tile register holds 16 rows of 64 bytes. For every 16 cells of k two of the left operand (16
//! rows of 16 cells) are multiplied with two of the right one (a vector for each cell of k): 4
//! multiplications for 4 loads. Each sums the first and the second products of its pairs apart,
//! then adds both; subnormal numbers are taken as 0.
//!
//! The standard library's intrinsics for AMX are unstable, its assembler is not.

#![allow(unsafe_code)]

use std::arch::asm;
use std::cell::Cell;

use super::kernel::{Left, Target};

/// Rows of a full tile of sums.
pub(super) const ROWS: usize = 2 * SIDE;
/// Vectors of a row of a full tile of sums.
pub(super) const VECTORS: usize = 2;
/// Sums in a vector.
pub(super) const LANES: usize = SIDE;

/// Longest run of k in cells that is multiplied at once. 32 rows of so many stay in the first cache
/// of 48 KiB while panels and sums, as much again and a quarter more, come and go.
pub(super) const RUN: usize = 128;
/// Longest run of k in cells that is packed at once.
pub(super) const DEPTH: usize = 3 * RUN;

/// Rows of a register, and cells of a row.
pub(super) const SIDE: usize = 16;
pub(super) const CELL_BYTES: usize = size_of::<f32>();

/// Whether this processor multiplies tiles of bf16 and Linux lets this process use them.
pub(super) fn is_available() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    let is_known = std::arch::x86_64::__cpuid(0).eax >= 7;
    let features = if is_known { std::arch::x86_64::__cpuid_count(7, 0).edx } else { 0 };
    features & (BF16 | TILE) == BF16 | TILE && is_permitted()
}

/// Asks Linux for the tiles' state, for every thread of this process: since version 5.16 it is not
/// there unasked.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    unsafe extern "C" {
        fn syscall(number: i64, ...) -> i64;
    }
    // SAFETY: takes two numbers; an older kernel refuses.
    unsafe { syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Shapes of the registers, as `ldtilecfg` takes them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Sums in 0 to 3, two of each half of the rows; halves of the left operand in 4 and 5, vectors
    /// of the right one in 6 and 7.
    fn new(rows: usize, cells: usize) -> Self {
        let (upper, lower) = (rows.min(SIDE), if rows > SIDE { rows - SIDE } else { rows });
        let rows = [upper, upper, lower, lower, upper, lower, cells, cells];
        let columns = [SIDE, SIDE, SIDE, SIDE, cells, cells, SIDE, SIDE];
        let mut shapes =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for register in 0..8 {
            shapes.rows[register] = rows[register] as u8;
            shapes.row_bytes[register] = (columns[register] * CELL_BYTES) as u16;
        }
        shapes
    }
}

thread_local! {
    /// Rows and cells that this thread's registers are shaped for; none at first, and none once
    /// they are released.
    static SHAPED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Shapes this thread's registers, unless they are so shaped: that takes as long as many tiles.
///
/// # Safety
/// [`is_available`] must have said so.
#[inline(always)]
pub(super) unsafe fn shape(rows: usize, cells: usize) {
    if SHAPED.replace((rows, cells)) != (rows, cells) {
        let shapes = Shapes::new(rows, cells);
        // SAFETY: reads the 64 bytes of a valid configuration. Until the registers are released no
        // other code runs on this thread that uses them.
        unsafe {
            asm!(
                "ldtilecfg [{}]",
                in(reg) &raw const shapes,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(readonly, nostack),
            );
        }
    }
}

/// Gives this thread's registers back: switches to other threads need not keep them.
pub(super) fn release() {
    if SHAPED.replace((0, 0)) != (0, 0) {
        // SAFETY: the registers were shaped, so the processor has them.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nomem, nostack),
            );
        }
    }
}

/// Multiplies `rows` rows of `depth` cells, those of a row contiguous, with `vectors` vectors per
/// step, and writes or adds the tile of sums.
///
/// # Safety
/// As [`super::kernel::Kernel::multiply`], and [`is_available`] must have said so.
pub(super) unsafe fn multiply(
    target: Target<f32>,
    (rows, vectors, depth): (usize, usize, usize),
    left: Left<f32>,
    right: *const f32,
) {
    debug_assert_eq!(left.step_bytes, CELL_BYTES, "cells of a row are contiguous");
    // SAFETY: as this function.
    unsafe {
        match vectors {
            1 => tiles::<1>(target, (rows, depth), left, right),
            _ => tiles::<2>(target, (rows, depth), left, right),
        }
    }
}

/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn tiles<const VECTORS: usize>(
    target: Target<f32>,
    (rows, depth): (usize, usize),
    left: Left<f32>,
    right: *const f32,
) {
    let (rounds, rest) = (depth / SIDE, depth % SIDE);
    // SAFETY: whole registers of each row's cells, then the others; their shapes are theirs.
    unsafe {
        if rounds > 0 {
            shape(rows, SIDE);
            tile::<VECTORS>(target, (rows, rounds), left, right);
        }
        if rest > 0 {
            shape(rows, rest);
            let target = Target { accumulate: target.accumulate || rounds > 0, ..target };
            let left = Left { start: left.start.wrapping_add(rounds * SIDE), ..left };
            let right = right.wrapping_add(rounds * SIDE * VECTORS * LANES);
            tile::<VECTORS>(target, (rows, 1), left, right);
        }
    }
}

/// For whole registers of the shapes that they have. Where there is but one half of rows, or one
/// vector, it does the same twice: only at edges. Each round asks for the vectors of the one after
/// the next: loads of registers wait for the second cache more than others do.
///
/// Inlined: a copy of `left` for it would be read before what wrote it, and the sums of the tile
/// before, have reached the cache.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn tile<const VECTORS: usize>(
    target: Target<f32>,
    (rows, rounds): (usize, usize),
    left: Left<f32>,
    right: *const f32,
) {
    let half = if rows > SIDE { SIDE } else { 0 };
    // SAFETY: the registers are shaped for what the caller lets this read and write.
    unsafe {
        asm!(
            "test {accumulate:e}, {accumulate:e}",
            "jz 2f",
            "tileloadd tmm0, [{to} + {to_row}]",
            "tileloadd tmm1, [{to} + {to_row} + {second}]",
            "tileloadd tmm2, [{to_lower} + {to_row}]",
            "tileloadd tmm3, [{to_lower} + {to_row} + {second}]",
            "jmp 3f",
            "2:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "3:",
            ".irp line, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "prefetcht0 [{right} + 2 * {round} + 64 * \\line]",
            "prefetcht0 [{right} + 2 * {round} + 64 * 16 + 64 * \\line]",
            ".endr",
            "tileloadd tmm4, [{left} + {left_row}]",
            "tileloadd tmm6, [{right} + {right_row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{right} + {right_row} + {second}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{lower} + {left_row}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {left}, 64",
            "add {lower}, 64",
            "add {right}, {round}",
            "dec {rounds}",
            "jnz 3b",
            "tilestored [{to} + {to_row}], tmm0",
            "tilestored [{to} + {to_row} + {second}], tmm1",
            "tilestored [{to_lower} + {to_row}], tmm2",
            "tilestored [{to_lower} + {to_row} + {second}], tmm3",
            accumulate = in(reg) u32::from(target.accumulate),
            rounds = inout(reg) rounds => _,
            left = inout(reg) left.start => _,
            lower = inout(reg) left.start.wrapping_byte_add(half * left.row_bytes) => _,
            left_row = in(reg) left.row_bytes,
            right = inout(reg) right => _,
            right_row = in(reg) VECTORS * LANES * CELL_BYTES,
            to = in(reg) target.start,
            to_lower = in(reg) target.start.wrapping_add(half * target.row),
            to_row = in(reg) target.row * CELL_BYTES,
            second = const (VECTORS - 1) * LANES * CELL_BYTES,
            round = const VECTORS * LANES * CELL_BYTES * SIDE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Whether this thread holds no registers, by the processor's word.
#[cfg(test)]
pub(super) fn is_released() -> bool {
    let mut shapes = Shapes::new(1, 1);
    if is_available() {
        // SAFETY: the processor has the instruction, which writes 64 bytes.
        unsafe { asm!("sttilecfg [{}]", in(reg) &raw mut shapes, options(nostack)) };
        return shapes.palette == 0;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{CELL_BYTES, LANES, ROWS, RUN, SIDE, Shapes, VECTORS};
    use crate::ops::matmul::product::TILE;

    const _: () = assert!(ROWS * VECTORS * LANES <= TILE && RUN.is_multiple_of(SIDE));

    #[test]
    fn registers_of_a_product_fit_each_other() {
        for (rows, cells) in (1..=ROWS).flat_map(|rows| (1..=SIDE).map(move |cells| (rows, cells)))
        {
            let shapes = Shapes::new(rows, cells);
            let rows_of = |register: usize| usize::from(shapes.rows[register]);
            let bytes_of = |register: usize| usize::from(shapes.row_bytes[register]);
            for register in 0..8 {
                assert!((1..=SIDE).contains(&rows_of(register)), "{rows}, {cells}");
                assert!((1..=SIDE * CELL_BYTES).contains(&bytes_of(register)), "{rows}, {cells}");
            }
            for (sums, left, right) in [(0, 4, 6), (1, 4, 7), (2, 5, 6), (3, 5, 7)] {
                assert_eq!(rows_of(sums), rows_of(left), "{rows}, {cells}");
                assert_eq!(bytes_of(left), CELL_BYTES * rows_of(right), "{rows}, {cells}");
                assert_eq!(bytes_of(sums), bytes_of(right), "{rows}, {cells}");
            }
            let all = rows_of(0) + if rows > SIDE { rows_of(2) } else { 0 };
            assert_eq!((all, rows_of(6)), (rows, cells));
            assert!(rows > SIDE || rows_of(2) == rows, "the upper half twice: {rows}");
        }
    }
}
