//! The kernels that this processor has, best first.

use std::any::{Any, TypeId};
use std::sync::LazyLock;

use half::bf16;

use super::gemm;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx512};
use crate::ops::Element;
use crate::ops::matmul::tile::Kernel;

/// The best kernel for products of E.
pub(in crate::ops) fn best<E: Element>() -> &'static Kernel<E::Wide> {
    let kernel: &'static dyn Any = match TypeId::of::<E>() {
        of if of == TypeId::of::<bf16>() => pairs().first().unwrap_or(&singles()[0]),
        of if of == TypeId::of::<f32>() => &singles()[0],
        _ => double(),
    };
    kernel.downcast_ref().expect("a kernel whose sums are the element's wide type")
}

/// Instruction sets of kernels for this architecture and element that are no fallback, best first.
pub(in crate::ops) fn full_speed<E: Element>() -> &'static [&'static str] {
    match (cfg!(target_arch = "x86_64"), cfg!(target_arch = "aarch64")) {
        (true, _) if TypeId::of::<E>() == TypeId::of::<bf16>() => &["amx_bf16", "avx512bf16"],
        (true, _) => &["avx512f"],
        (_, true) => &["neon"],
        _ => &["scalar"],
    }
}

/// Kernels for f32 and for elements that are widened to it, best first, then for every lesser
/// instruction set of this processor.
pub(in crate::ops) fn singles() -> &'static [Kernel<f32>] {
    static KERNELS: LazyLock<Vec<Kernel<f32>>> = LazyLock::new(|| {
        #[cfg(target_arch = "x86_64")]
        let own = avx512::single();
        #[cfg(not(target_arch = "x86_64"))]
        let own = None;
        own.into_iter().chain(gemm::singles()).collect()
    });
    &KERNELS
}

/// Kernels for pairs of bf16, best first.
pub(in crate::ops) fn pairs() -> &'static [Kernel<f32>] {
    static KERNELS: LazyLock<Vec<Kernel<f32>>> = LazyLock::new(|| {
        #[cfg(target_arch = "x86_64")]
        let own = [amx::pairs(), avx512::pairs()];
        #[cfg(not(target_arch = "x86_64"))]
        let own = [None];
        own.into_iter().flatten().collect()
    });
    &KERNELS
}

/// The kernel for f64.
pub(in crate::ops) fn double() -> &'static Kernel<f64> {
    static KERNEL: LazyLock<Kernel<f64>> = LazyLock::new(gemm::double);
    &KERNEL
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::{best, double, full_speed, pairs, singles};
    use crate::ops::matmul::tile::{Kernel, MAX_TILE_ELEMENTS};

    #[test]
    fn names_are_those_of_the_kernels_in_use() {
        assert_eq!(best::<f32>().name, singles()[0].name);
        assert_eq!(best::<f64>().name, singles()[0].name, "one set for both elements");
        assert_eq!(best::<bf16>().name, pairs().first().unwrap_or(&singles()[0]).name);
        // The driver relies on the lanes; the name must agree.
        for kernel in pairs().iter().chain(singles()) {
            let expected = match kernel.name {
                "amx_bf16" | "avx512bf16" => (16, 2),
                "avx512f" => (16, 1),
                "fma" => (8, 1),
                "neon" => (4, 1),
                "scalar" => (1, 1),
                other => panic!("unknown instruction set {other}"),
            };
            assert_eq!((kernel.lanes, kernel.k_group), expected, "{kernel:?}");
        }
    }

    #[test]
    fn tiles_and_slices_fit_the_driver() {
        fn fits<W: crate::ops::Float>(kernel: &Kernel<W>) {
            let elements = kernel.rows * kernel.panel_columns();
            assert!(elements <= MAX_TILE_ELEMENTS, "{kernel:?}");
            assert!(kernel.slice_steps.is_multiple_of(kernel.step_group), "{kernel:?}");
            assert!(kernel.block_steps.is_multiple_of(kernel.slice_steps), "{kernel:?}");
            assert!(kernel.step_group == 1 || kernel.takes_pairs(), "{kernel:?}: rows of pairs");
        }
        pairs().iter().chain(singles()).for_each(fits);
        fits(double());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_processor_without_the_best_instructions_falls_back() {
        assert_eq!(full_speed::<f32>(), ["avx512f"]);
        assert_eq!(full_speed::<bf16>(), ["amx_bf16", "avx512bf16"]);
        let is_fallback = !full_speed::<f32>().contains(&best::<f32>().name);
        assert_eq!(is_fallback, !is_x86_feature_detected!("avx512f"));
        let is_fallback = !full_speed::<bf16>().contains(&best::<bf16>().name);
        let pairs = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
        assert_eq!(is_fallback, !pairs && super::amx::pairs().is_none());
    }
}
