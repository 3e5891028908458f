//! Micro-kernels in AMX: 32 x 32 sums of pairs of bf16 in four of the eight tile registers.
//!
//! A tile register holds 16 rows of 64 bytes. For every 16 steps along k two registers of A (16
//! rows of 16 pairs) are multiplied by two of B (a vector for each step): 4 multiplications for 4
//! loads. Each sums the first and the second products of its pairs apart, then adds both; subnormal
//! numbers count as 0.
//!
//! The standard library's intrinsics for AMX are unstable, so this is assembler.

#![allow(unsafe_code)]

use std::arch::asm;
use std::cell::Cell;

use crate::ops::matmul::tile::{Kernel, Left, Target, TileShape};

/// Rows of a full tile of sums.
const ROWS: usize = 2 * SIDE;
/// Vectors along a row of a full tile of sums.
const VECTORS: usize = 2;
/// Sums in a vector.
const LANES: usize = SIDE;

/// Longest slice of k that is multiplied at once, in steps. 32 rows of so many stay in the
/// first-level cache of 48 KiB while panels and sums, as much again and a quarter more, pass.
const SLICE_STEPS: usize = 128;
/// Longest block of k that is packed at once, in steps.
const BLOCK_STEPS: usize = 3 * SLICE_STEPS;

/// Rows of a register, and pairs of a row.
const SIDE: usize = 16;
const PAIR_BYTES: usize = size_of::<f32>();

/// The kernel for pairs of bf16, where this processor has it.
pub(super) fn pairs() -> Option<Kernel<f32>> {
    is_available().then_some(Kernel {
        name: "amx_bf16",
        lanes: LANES,
        vectors: VECTORS,
        rows: ROWS,
        k_group: 2,
        step_group: SIDE,
        slice_steps: SLICE_STEPS,
        block_steps: BLOCK_STEPS,
        buffers_sums: true,
        micro_kernel: multiply,
        release,
    })
}

/// Returns whether this processor multiplies tiles of bf16 and Linux lets this process use them.
pub(super) fn is_available() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    let is_known = std::arch::x86_64::__cpuid(0).eax >= 7;
    let features = if is_known { std::arch::x86_64::__cpuid_count(7, 0).edx } else { 0 };
    features & (BF16 | TILE) == BF16 | TILE && is_permitted()
}

/// Requests the permission to use tile registers for every thread of this process, which Linux
/// demands since version 5.16.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    unsafe extern "C" {
        fn syscall(number: i64, ...) -> i64;
    }
    // SAFETY: a system call with two numbers; older versions of Linux refuse it.
    unsafe { syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Configuration of the tile registers, as `ldtilecfg` takes it.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    /// Sums in 0 to 3, two of each half of the rows; halves of the left operand in 4 and 5, vectors
    /// of the right one in 6 and 7.
    fn new(rows: usize, steps: usize) -> Self {
        let upper = rows.min(SIDE);
        let lower = if rows > SIDE { rows - SIDE } else { rows };
        let rows = [upper, upper, lower, lower, upper, lower, steps, steps];
        let columns = [SIDE, SIDE, SIDE, SIDE, steps, steps, SIDE, SIDE];
        let mut configuration =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for register in 0..8 {
            configuration.rows[register] = rows[register] as u8;
            configuration.row_bytes[register] = (columns[register] * PAIR_BYTES) as u16;
        }
        configuration
    }
}

thread_local! {
    /// Rows and steps that this thread's registers are configured for; none at first, and none
    /// once they are released.
    static CONFIGURED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Configures this thread's registers, unless they are configured like this: `ldtilecfg` takes as
/// long as many tiles.
///
/// # Safety
/// [`is_available`] must have returned true.
#[inline(always)]
unsafe fn configure(rows: usize, steps: usize) {
    if CONFIGURED.replace((rows, steps)) != (rows, steps) {
        let configuration = Configuration::new(rows, steps);
        // SAFETY: reads the 64 bytes of a valid configuration. Until the registers are released no
        // other code runs on this thread that uses them.
        unsafe {
            asm!(
                "ldtilecfg [{}]",
                in(reg) &raw const configuration,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(readonly, nostack),
            );
        }
    }
}

/// Releases this thread's registers: context switches need not save them then.
fn release() {
    if CONFIGURED.replace((0, 0)) != (0, 0) {
        // SAFETY: the registers were configured, so the processor has them.
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

/// Multiplies and writes or adds one tile; the packed elements of a row are contiguous.
///
/// # Safety
/// See [`Kernel::multiply`]; [`is_available`] must have returned true.
unsafe fn multiply(target: Target<f32>, shape: TileShape, left: Left<f32>, right: *const f32) {
    debug_assert_eq!(left.step_bytes, PAIR_BYTES, "pairs of a row are contiguous");
    // SAFETY: as this function.
    unsafe {
        match shape.vectors {
            1 => multiply_vectors::<1>(target, shape, left, right),
            _ => multiply_vectors::<2>(target, shape, left, right),
        }
    }
}

/// # Safety
/// See [`multiply`], for this number of vectors.
#[inline(always)]
unsafe fn multiply_vectors<const VECTORS: usize>(
    target: Target<f32>,
    shape: TileShape,
    left: Left<f32>,
    right: *const f32,
) {
    let TileShape { rows, steps, .. } = shape;
    let whole_registers = steps / SIDE;
    let rest = steps % SIDE;
    // SAFETY: whole registers of each row's pairs, then the rest, each configured before.
    unsafe {
        if whole_registers > 0 {
            configure(rows, SIDE);
            tile::<VECTORS>(target, rows, whole_registers, left, right);
        }
        if rest > 0 {
            configure(rows, rest);
            let accumulate = target.accumulate || whole_registers > 0;
            let target = Target { accumulate, ..target };
            let left = Left { start: left.start.wrapping_add(whole_registers * SIDE), ..left };
            let right = right.wrapping_add(whole_registers * SIDE * VECTORS * LANES);
            tile::<VECTORS>(target, rows, 1, left, right);
        }
    }
}

/// One tile over `registers` whole registers of each row. Where there is one half of the rows only,
/// or one vector, it computes the same twice: that happens at edges alone. Each round prefetches
/// the vectors of the one after the next: loads of tile registers wait for the second-level cache
/// longer than other loads do.
///
/// Inlined: a copy of `left` on the stack would be loaded before the stores that wrote it, and
/// those of the sums of the tile before, have reached the cache.
///
/// # Safety
/// See [`multiply`].
#[inline(always)]
unsafe fn tile<const VECTORS: usize>(
    target: Target<f32>,
    rows: usize,
    registers: usize,
    left: Left<f32>,
    right: *const f32,
) {
    let half = if rows > SIDE { SIDE } else { 0 };
    // SAFETY: the registers are configured for what the caller lets this read and write.
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
            rounds = inout(reg) registers => _,
            left = inout(reg) left.start => _,
            lower = inout(reg) left.start.wrapping_byte_add(half * left.row_bytes) => _,
            left_row = in(reg) left.row_bytes,
            right = inout(reg) right => _,
            right_row = in(reg) VECTORS * LANES * PAIR_BYTES,
            to = in(reg) target.start,
            to_lower = in(reg) target.start.wrapping_add(half * target.row_stride),
            to_row = in(reg) target.row_stride * PAIR_BYTES,
            second = const (VECTORS - 1) * LANES * PAIR_BYTES,
            round = const VECTORS * LANES * PAIR_BYTES * SIDE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Returns whether this thread's registers are released, as the processor reports.
#[cfg(test)]
pub(super) fn is_released() -> bool {
    let mut configuration = Configuration::new(1, 1);
    if is_available() {
        // SAFETY: the processor has the instruction, which writes 64 bytes.
        unsafe { asm!("sttilecfg [{}]", in(reg) &raw mut configuration, options(nostack)) };
        return configuration.palette == 0;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{Configuration, LANES, PAIR_BYTES, ROWS, SIDE, SLICE_STEPS, VECTORS};
    use crate::ops::matmul::tile::MAX_TILE_ELEMENTS;

    const _: () = assert!(ROWS * VECTORS * LANES <= MAX_TILE_ELEMENTS);
    const _: () = assert!(SLICE_STEPS.is_multiple_of(SIDE));

    #[test]
    fn configured_registers_fit_each_other() {
        for (rows, steps) in (1..=ROWS).flat_map(|rows| (1..=SIDE).map(move |steps| (rows, steps)))
        {
            let configuration = Configuration::new(rows, steps);
            let rows_of = |register: usize| usize::from(configuration.rows[register]);
            let bytes_of = |register: usize| usize::from(configuration.row_bytes[register]);
            for register in 0..8 {
                assert!((1..=SIDE).contains(&rows_of(register)), "{rows}, {steps}");
                assert!((1..=SIDE * PAIR_BYTES).contains(&bytes_of(register)), "{rows}, {steps}");
            }
            for (sums, left, right) in [(0, 4, 6), (1, 4, 7), (2, 5, 6), (3, 5, 7)] {
                assert_eq!(rows_of(sums), rows_of(left), "{rows}, {steps}");
                assert_eq!(bytes_of(left), PAIR_BYTES * rows_of(right), "{rows}, {steps}");
                assert_eq!(bytes_of(sums), bytes_of(right), "{rows}, {steps}");
            }
            let all = rows_of(0) + if rows > SIDE { rows_of(2) } else { 0 };
            assert_eq!((all, rows_of(6)), (rows, steps));
            assert!(rows > SIDE || rows_of(2) == rows, "the upper half twice: {rows}");
        }
    }
}
