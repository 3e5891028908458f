//! Micro-kernels: the innermost loop of a matmul, one tile of the output in registers.
//!
//! Those for AMX, and for AVX-512 in f32 and bf16, are our own; all others are those of the `gemm`
//! crate, whose driver is not used because it allocates packing buffers on every call.

#![allow(unsafe_code)]

use std::fmt::{Debug, Formatter};
use std::sync::LazyLock;

use gemm_common::microkernel::MicroKernelFn;

use super::strided::Strided;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx512};
use crate::ops::{Element, Float};

/// Where a tile of sums goes: whole vectors in each row.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Target<W> {
    /// First element.
    pub(in crate::ops) start: *mut W,
    /// From one row to the next, in elements.
    pub(in crate::ops) row: usize,
    /// Whether the sums are added to what is there.
    pub(in crate::ops) accumulate: bool,
}

/// A column of cells of the left operand for each step, each cell the size of a wide element.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Left<W> {
    /// The first cell; need not be aligned.
    pub(in crate::ops) start: *const W,
    /// From one row to the next.
    pub(in crate::ops) row_bytes: usize,
    /// From one step to the next.
    pub(in crate::ops) step_bytes: usize,
}

/// A micro-kernel of our own for one number of rows and of vectors, and any of steps.
#[cfg(target_arch = "x86_64")]
pub(super) type Tile<W> = unsafe fn(Target<W>, usize, Left<W>, *const W);

/// A micro-kernel of our own for all numbers of rows, vectors and steps.
#[cfg(target_arch = "x86_64")]
type Tiles<W> = unsafe fn(Target<W>, (usize, usize, usize), Left<W>, *const W);

/// Micro-kernels of one instruction set, for operands in cells of W.
///
/// A tile has up to `vectors` vectors of `lanes` elements along contiguous output columns, times up
/// to `rows` output rows. A cell holds `group` elements that follow each other along k.
pub struct Kernel<W: 'static> {
    /// Name of the instruction set, as in `avx512f`.
    pub(super) name: &'static str,
    pub(super) lanes: usize,
    pub(super) vectors: usize,
    pub(super) rows: usize,
    /// Elements in a cell: 2 (bf16 as it is) or 1 (everything else, widened).
    pub(super) group: usize,
    /// Cells of a row of the left operand that are read at once. Where they are several, those of a
    /// row must be contiguous; else those of a step may be.
    pub(super) row_cells: usize,
    /// Longest run of k, in cells, that is multiplied at once: longer ones leave the caches.
    pub(super) depth: usize,
    /// Whether sums are better kept in tiles of their own until all of k is added, than added to C
    /// for every part of k: rows of C lie pages apart.
    pub(super) sums_wait: bool,
    functions: Functions<W>,
}

#[derive(Clone, Copy)]
enum Functions<W: 'static> {
    /// Our own for all shapes.
    #[cfg(target_arch = "x86_64")]
    AnyShape(Tiles<W>),
    /// Our own by rows and vectors, each less one.
    #[cfg(target_arch = "x86_64")]
    ByShape(&'static [[Tile<W>; avx512::VECTORS]; avx512::ROWS]),
    /// By vectors and rows, each less one.
    Gemm(&'static [&'static [MicroKernelFn<W>]]),
}

impl<W> Debug for Kernel<W> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Kernel").field(&self.name).finish()
    }
}

impl<W: Float> Kernel<W> {
    /// Sums in a vector.
    pub(in crate::ops) fn lanes(&self) -> usize {
        self.lanes
    }

    /// Elements in a cell.
    pub(in crate::ops) fn group(&self) -> usize {
        self.group
    }

    /// Columns of a full tile.
    pub(in crate::ops) fn panel(&self) -> usize {
        self.lanes * self.vectors
    }

    /// Whether the micro-kernels can read a left operand over `k` as it is: k along cells that
    /// elements already form.
    pub(super) fn reads<E: Element<Wide = W>>(&self, left: Strided<E>, k: usize) -> bool {
        left.column == 1 && self.reads_rows::<E>(k)
    }

    /// The same for one whose rows are contiguous.
    pub(in crate::ops) fn reads_rows<E: Element<Wide = W>>(&self, k: usize) -> bool {
        self.group * size_of::<E>() == size_of::<W>() && k.is_multiple_of(self.group)
    }

    /// Whether the left operand's cells of a row must be contiguous; else those of a step may be.
    pub(in crate::ops) fn reads_rows_only(&self) -> bool {
        self.row_cells > 1
    }

    /// Gives back what this thread holds to multiply: after the last of a task's products.
    pub(in crate::ops) fn release(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Functions::AnyShape(_) = self.functions {
            amx::release();
        }
    }

    /// A left operand that [`Self::reads`] says is readable as it is.
    pub(in crate::ops) fn in_place<E: Element<Wide = W>>(&self, left: Strided<E>) -> Left<W> {
        Left {
            start: left.start.cast(),
            row_bytes: left.row * size_of::<E>(),
            step_bytes: size_of::<W>(),
        }
    }

    /// Asks for `cells` cells that will be needed soon.
    #[inline(always)]
    pub(super) fn prefetch(&self, start: *const W, cells: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Functions::ByShape(_) | Functions::AnyShape(_) = self.functions {
            avx512::prefetch(start, cells);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (start, cells);
    }

    /// Multiplies `rows` rows of `depth` cells with a panel of `vectors` vectors per step, and
    /// writes or adds the tile.
    ///
    /// # Safety
    /// Operands must be readable and the target writable over these dimensions, the rows of the
    /// panel contiguous; 1 to `self.rows` rows, 1 to `self.vectors` vectors.
    #[inline(always)]
    pub(in crate::ops) unsafe fn multiply(
        &self,
        target: Target<W>,
        (rows, vectors, depth): (usize, usize, usize),
        left: Left<W>,
        right: *const W,
    ) {
        match self.functions {
            #[cfg(target_arch = "x86_64")]
            Functions::AnyShape(function) => {
                // SAFETY: as this function; the processor was asked when this was chosen.
                unsafe { function(target, (rows, vectors, depth), left, right) }
            }
            #[cfg(target_arch = "x86_64")]
            Functions::ByShape(functions) => {
                // SAFETY: as this function; the features were detected when this was chosen.
                unsafe { functions[rows - 1][vectors - 1](target, depth, left, right) }
            }
            Functions::Gemm(functions) => {
                let width = vectors * self.lanes;
                let (keep, status) = if target.accumulate { (W::ONE, 1) } else { (W::ZERO, 0) };
                let stride = |bytes: usize| (bytes / size_of::<W>()) as isize;
                // SAFETY: as above.
                unsafe {
                    functions[vectors - 1][rows - 1](
                        width,
                        rows,
                        depth,
                        target.start,
                        right,
                        left.start,
                        target.row as isize,
                        1,
                        width as isize,
                        stride(left.step_bytes),
                        stride(left.row_bytes),
                        keep,
                        W::ONE,
                        status,
                        false,
                        false,
                        false,
                        std::ptr::null(),
                    );
                }
            }
        }
    }
}

/// Instruction sets of kernels for this architecture and element that are no fallback, best first.
pub(super) fn full_speed<E: Element>() -> &'static [&'static str] {
    match (cfg!(target_arch = "x86_64"), cfg!(target_arch = "aarch64")) {
        (true, _) if size_of::<E>() < size_of::<E::Wide>() => &["amx_bf16", "avx512bf16"],
        (true, _) => &["avx512f"],
        (_, true) => &["neon"],
        _ => &["scalar"],
    }
}

/// Kernels that read cells one by one: lanes, vectors and rows of a tile.
fn plain<W>(
    name: &'static str,
    (lanes, vectors, rows): (usize, usize, usize),
    group: usize,
    functions: Functions<W>,
) -> Kernel<W> {
    // For so many cells of k 6 rows fill about half of the first cache.
    let depth = 768;
    Kernel { name, lanes, vectors, rows, group, row_cells: 1, depth, sums_wait: false, functions }
}

macro_rules! kernel {
    ($library:ident, $set:ident, $float:ident, $lanes:literal, [$($vectors:literal),*]) => {{
        use $library::microkernel::$set::$float::{MR_DIV_N, NR, UKR};
        static FUNCTIONS: [[MicroKernelFn<$float>; NR]; MR_DIV_N] = UKR;
        static ROWS: [&[MicroKernelFn<$float>]; MR_DIV_N] = [$(&FUNCTIONS[$vectors]),*];
        plain(stringify!($set), ($lanes, MR_DIV_N, NR), 1, Functions::Gemm(&ROWS))
    }};
}

/// Kernels for f32, best first, then for every lesser instruction set of this processor.
pub(in crate::ops) fn singles() -> &'static [Kernel<f32>] {
    static KERNELS: LazyLock<Vec<Kernel<f32>>> = LazyLock::new(detect_singles);
    &KERNELS
}

/// Kernels for f32.
pub(in crate::ops) fn single() -> &'static Kernel<f32> {
    &singles()[0]
}

/// Kernels for f64.
pub(in crate::ops) fn double() -> &'static Kernel<f64> {
    static KERNEL: LazyLock<Kernel<f64>> = LazyLock::new(detect_double);
    &KERNEL
}

/// Kernels for pairs of bf16, best first.
pub(in crate::ops) fn pairs() -> &'static [Kernel<f32>] {
    static KERNELS: LazyLock<Vec<Kernel<f32>>> = LazyLock::new(detect_pairs);
    &KERNELS
}

/// Kernels for bf16: those for pairs, or else those for f32 with operands widened.
pub(in crate::ops) fn brain() -> &'static Kernel<f32> {
    pairs().first().unwrap_or_else(|| single())
}

#[cfg(target_arch = "x86_64")]
fn own(name: &'static str, group: usize) -> Kernel<f32> {
    let table = if group == 2 { &avx512::PAIRS } else { &avx512::SINGLE };
    let shape = (avx512::LANES, avx512::VECTORS, avx512::ROWS);
    plain(name, shape, group, Functions::ByShape(table))
}

#[cfg(target_arch = "x86_64")]
fn detect_pairs() -> Vec<Kernel<f32>> {
    let mut kernels = Vec::new();
    if amx::is_available() {
        kernels.push(Kernel {
            name: "amx_bf16",
            lanes: amx::LANES,
            vectors: amx::VECTORS,
            rows: amx::ROWS,
            group: 2,
            row_cells: amx::LANES,
            depth: amx::DEPTH,
            sums_wait: true,
            functions: Functions::AnyShape(amx::multiply),
        });
    }
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16") {
        kernels.push(own("avx512bf16", 2));
    }
    kernels
}

#[cfg(target_arch = "x86_64")]
fn detect_singles() -> Vec<Kernel<f32>> {
    let mut kernels = Vec::new();
    if is_x86_feature_detected!("avx512f") {
        kernels.push(own("avx512f", 1));
    }
    if is_x86_feature_detected!("fma") {
        kernels.push(kernel!(gemm_f32, fma, f32, 8, [0, 1]));
    }
    kernels.push(kernel!(gemm_f32, scalar, f32, 1, [0, 1]));
    kernels
}

#[cfg(target_arch = "x86_64")]
fn detect_double() -> Kernel<f64> {
    if is_x86_feature_detected!("avx512f") {
        kernel!(gemm_f64, avx512f, f64, 8, [0, 1, 2, 3])
    } else if is_x86_feature_detected!("fma") {
        kernel!(gemm_f64, fma, f64, 4, [0, 1])
    } else {
        kernel!(gemm_f64, scalar, f64, 1, [0, 1])
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect_pairs() -> Vec<Kernel<f32>> {
    Vec::new()
}

#[cfg(not(target_arch = "x86_64"))]
fn detect_singles() -> Vec<Kernel<f32>> {
    let mut kernels = Vec::new();
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("neon") {
        kernels.push(kernel!(gemm_f32, neon, f32, 4, [0, 1, 2, 3]));
    }
    kernels.push(kernel!(gemm_f32, scalar, f32, 1, [0, 1]));
    kernels
}

#[cfg(not(target_arch = "x86_64"))]
fn detect_double() -> Kernel<f64> {
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("neon") {
        return kernel!(gemm_f64, neon, f64, 2, [0, 1, 2, 3]);
    }
    kernel!(gemm_f64, scalar, f64, 1, [0, 1])
}

#[cfg(test)]
mod tests {
    use super::{Kernel, double, pairs, singles};
    use crate::ops::matmul::kernel_name;
    use crate::ops::matmul::product::{PANEL, TILE};

    #[test]
    fn the_name_is_that_of_the_kernels_in_use() {
        assert_eq!(kernel_name::<f32>(), singles()[0].name);
        assert_eq!(kernel_name::<f64>(), kernel_name::<f32>(), "one set for both elements");
        // The lanes are what the driver relies on; the name must not say anything else.
        for kernel in pairs().iter().chain(singles()) {
            let Kernel { name, lanes, group, .. } = kernel;
            let expected = match *name {
                "amx_bf16" | "avx512bf16" => (16, 2),
                "avx512f" => (16, 1),
                "fma" => (8, 1),
                "neon" => (4, 1),
                "scalar" => (1, 1),
                other => panic!("unknown instruction set {other}"),
            };
            assert_eq!((*lanes, *group), expected, "{name}");
        }
    }

    #[test]
    fn every_tile_fits_its_room() {
        fn fits<W: crate::ops::Float>(kernel: &Kernel<W>) {
            assert!(kernel.rows * kernel.panel() <= TILE && kernel.panel() <= PANEL, "{kernel:?}");
            assert!(kernel.depth.is_multiple_of(kernel.row_cells), "{kernel:?}");
        }
        pairs().iter().chain(singles()).for_each(fits);
        fits(double());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_processor_without_the_best_instructions_falls_back() {
        use super::full_speed;
        use half::bf16;
        assert_eq!(full_speed::<f32>(), ["avx512f"]);
        assert_eq!(full_speed::<bf16>(), ["amx_bf16", "avx512bf16"]);
        let is_fallback = !full_speed::<f32>().contains(&kernel_name::<f32>());
        assert_eq!(is_fallback, !is_x86_feature_detected!("avx512f"));
        let is_fallback = !full_speed::<bf16>().contains(&kernel_name::<bf16>());
        let pairs = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
        assert_eq!(is_fallback, !pairs && !crate::ops::matmul::amx::is_available());
    }
}
