//! The kernels that this processor has, best first.

use std::sync::LazyLock;

use gemm_common::microkernel::MicroKernelFn;

use super::kernel::{Functions, Kernel};
#[cfg(target_arch = "x86_64")]
use super::{amx, amx_parts, avx512, split};
use crate::ops::Element;

/// Instruction sets of kernels for this architecture and element that are no fallback, best first.
pub(super) fn full_speed<E: Element>() -> &'static [&'static str] {
    match (cfg!(target_arch = "x86_64"), cfg!(target_arch = "aarch64")) {
        (true, _) if size_of::<E>() < size_of::<E::Wide>() => &["amx_bf16", "avx512bf16"],
        (true, _) if size_of::<E>() == size_of::<f32>() => &["amx_bf16x3", "avx512f"],
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
    Kernel {
        name,
        lanes,
        vectors,
        rows,
        group,
        parts: 1,
        row_cells: 1,
        run: depth,
        depth,
        sums_wait: false,
        functions,
    }
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

/// Kernels for f32 as it is, and for elements that are widened to it.
pub(in crate::ops) fn single() -> &'static Kernel<f32> {
    &singles()[0]
}

/// Kernels for f32 in three parts of bf16, best first.
pub(in crate::ops) fn parts() -> &'static [Kernel<f32>] {
    static KERNELS: LazyLock<Vec<Kernel<f32>>> = LazyLock::new(detect_parts);
    &KERNELS
}

/// The best kernels for f32: in parts, or else those that take it as it is.
pub(in crate::ops) fn best_single() -> &'static Kernel<f32> {
    parts().first().unwrap_or_else(|| single())
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

/// Kernels in AMX for pairs of bf16, or of so many parts of f32.
#[cfg(target_arch = "x86_64")]
fn tiles(
    name: &'static str,
    parts: usize,
    (run, depth): (usize, usize),
    functions: Functions<f32>,
) -> Kernel<f32> {
    Kernel {
        name,
        lanes: amx::LANES,
        vectors: amx::VECTORS,
        rows: amx::ROWS,
        group: 2,
        parts,
        row_cells: amx::SIDE,
        run,
        depth,
        sums_wait: true,
        functions,
    }
}

#[cfg(target_arch = "x86_64")]
fn detect_parts() -> Vec<Kernel<f32>> {
    let functions = Functions::Parts(amx_parts::multiply);
    let depth = amx_parts::DEPTH;
    let kernel = || tiles("amx_bf16x3", split::PARTS, (depth, depth), functions);
    (amx::is_available() && split::is_available()).then(kernel).into_iter().collect()
}

#[cfg(target_arch = "x86_64")]
fn detect_pairs() -> Vec<Kernel<f32>> {
    let mut kernels = Vec::new();
    if amx::is_available() {
        let functions = Functions::AnyShape(amx::multiply);
        kernels.push(tiles("amx_bf16", 1, (amx::RUN, amx::DEPTH), functions));
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
fn detect_parts() -> Vec<Kernel<f32>> {
    Vec::new()
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
    use super::{double, pairs, parts, singles};
    use crate::ops::matmul::kernel::Kernel;
    use crate::ops::matmul::kernel_name;
    use crate::ops::matmul::product::{PANEL, TILE};

    #[test]
    fn the_name_is_that_of_the_kernels_in_use() {
        assert_eq!(kernel_name::<f32>(), parts().first().unwrap_or(&singles()[0]).name);
        assert_eq!(kernel_name::<f64>(), singles()[0].name, "one set for both elements");
        // The lanes are what the driver relies on; the name must not say anything else.
        for kernel in parts().iter().chain(pairs()).chain(singles()) {
            let Kernel { name, lanes, group, parts, .. } = kernel;
            let expected = match *name {
                "amx_bf16x3" => (16, 2, 3),
                "amx_bf16" | "avx512bf16" => (16, 2, 1),
                "avx512f" => (16, 1, 1),
                "fma" => (8, 1, 1),
                "neon" => (4, 1, 1),
                "scalar" => (1, 1, 1),
                other => panic!("unknown instruction set {other}"),
            };
            assert_eq!((*lanes, *group, *parts), expected, "{name}");
        }
    }

    #[test]
    fn every_tile_fits_its_room() {
        fn fits<W: crate::ops::Float>(kernel: &Kernel<W>) {
            assert!(kernel.rows * kernel.panel() <= TILE && kernel.panel() <= PANEL, "{kernel:?}");
            assert!(kernel.run.is_multiple_of(kernel.row_cells), "{kernel:?}");
            assert!(kernel.depth.is_multiple_of(kernel.run), "{kernel:?}");
            assert!(kernel.row_cells == 1 || kernel.group == 2, "{kernel:?}: rows of pairs");
        }
        parts().iter().chain(pairs()).chain(singles()).for_each(fits);
        fits(double());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_processor_without_the_best_instructions_falls_back() {
        use super::full_speed;
        use half::bf16;
        assert_eq!(full_speed::<f32>(), ["amx_bf16x3", "avx512f"]);
        assert_eq!(full_speed::<bf16>(), ["amx_bf16", "avx512bf16"]);
        let is_fallback = !full_speed::<f32>().contains(&kernel_name::<f32>());
        assert_eq!(is_fallback, !is_x86_feature_detected!("avx512f") && parts().is_empty());
        let is_fallback = !full_speed::<bf16>().contains(&kernel_name::<bf16>());
        let pairs = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
        assert_eq!(is_fallback, !pairs && !crate::ops::matmul::amx::is_available());
    }
}
