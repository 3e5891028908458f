//! Vector instructions chosen at run time.
//!
//! The build targets the oldest processor of its architecture. [`vectorize`] runs a closure inside
//! a function that is compiled for AVX-512 or AVX2, so that plain loops in it use wide registers.

#![allow(unsafe_code)]

use super::{Element, Float};

/// Runs `work` with the widest vectors of this processor.
///
/// Everything in `work` must be inlined: pass a closure marked `#[inline(always)]` that calls only
/// functions marked the same way.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn vectorize<R>(work: impl FnOnce() -> R) -> R {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]
    fn avx512<R>(work: impl FnOnce() -> R) -> R {
        work()
    }
    #[target_feature(enable = "avx2,fma,bmi2")]
    fn avx2<R>(work: impl FnOnce() -> R) -> R {
        work()
    }
    // The standard library caches what it detects: each test is one load.
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("bmi2")
    {
        // SAFETY: the features were detected; every AVX-512 processor has AVX2 and FMA.
        unsafe { avx512(work) }
    } else if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi2")
    {
        // SAFETY: the features were detected.
        unsafe { avx2(work) }
    } else {
        work()
    }
}

/// Runs `work`; the vectors of this architecture are in its oldest processor already.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn vectorize<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Prefetches every cache line of some elements, which need not exist.
#[inline(always)]
pub(crate) fn prefetch<T>(start: *const T, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in cache_lines(start.cast(), len * size_of::<T>()) {
        // SAFETY: SSE is a part of x86-64, and a prefetch accesses nothing.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len);
}

/// Elements that a pass over memory processes at once: a cache line of bf16, the smallest element.
pub(crate) const RUN: usize = LINE_BYTES / 2;
/// Distance of [`prefetch_ahead`].
const AHEAD_BYTES: usize = 2048;

/// Prefetches as many elements as the run has, 2 KiB further on: a pass over memory with many
/// instructions for each line has too few loads in flight, and not every hardware prefetcher looks
/// far enough ahead.
#[inline(always)]
pub(crate) fn prefetch_ahead<T>(run: &[T]) {
    prefetch(run.as_ptr().wrapping_byte_add(AHEAD_BYTES), run.len());
}

/// The addresses of the cache lines that a range of bytes overlaps.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn cache_lines(start: *const i8, bytes: usize) -> impl Iterator<Item = *const i8> {
    let before = start.addr() % LINE_BYTES;
    (0..before + bytes)
        .step_by(LINE_BYTES)
        .map(move |offset| start.wrapping_sub(before).wrapping_add(offset))
}

/// Elements that are computed at once in registers, as the partial sums of [`sum`] and [`dot`]: one
/// AVX-512 register of f32, two of f64.
pub(crate) const LANES: usize = 16;

/// N elements from `start` on as values: where slices are written, the compiler does not know that
/// they do not overlap, and would read each element again.
#[inline(always)]
pub(crate) fn values<T: Copy, const N: usize>(slice: &[T], start: usize) -> [T; N] {
    *slice[start..].first_chunk().unwrap_or_else(|| unreachable!("a whole run"))
}

/// Sum of products of both slices in a fixed order that vectorises.
#[inline(always)]
pub(crate) fn dot<E: Element>(left: &[E], right: &[E]) -> E::Wide {
    sum_of(left, right, |a, b| a * b)
}

/// Sum of a function of pairs of both slices in a fixed order that vectorises.
#[inline(always)]
pub(crate) fn sum_of<E: Element>(
    left: &[E],
    right: &[E],
    f: impl Fn(E::Wide, E::Wide) -> E::Wide,
) -> E::Wide {
    let mut lanes = [E::Wide::ZERO; LANES];
    let (left_chunks, left_rest) = left.as_chunks::<LANES>();
    let (right_chunks, right_rest) = right.as_chunks::<LANES>();
    for (a, b) in left_chunks.iter().zip(right_chunks) {
        for lane in 0..LANES {
            lanes[lane] += f(a[lane].widen(), b[lane].widen());
        }
    }
    for (lane, (&a, &b)) in lanes.iter_mut().zip(left_rest.iter().zip(right_rest)) {
        *lane += f(a.widen(), b.widen());
    }
    fold(lanes)
}

/// Sums of functions of triples of three slices in a fixed order that vectorises.
#[inline(always)]
pub(crate) fn sums_of_three<E: Element, const N: usize>(
    first: &[E],
    second: &[E],
    third: &[E],
    f: impl Fn(E::Wide, E::Wide, E::Wide) -> [E::Wide; N],
) -> [E::Wide; N] {
    let mut sums = [[E::Wide::ZERO; LANES]; N];
    let (first_chunks, first_rest) = first.as_chunks::<LANES>();
    let (second_chunks, second_rest) = second.as_chunks::<LANES>();
    let (third_chunks, third_rest) = third.as_chunks::<LANES>();
    let mut add = |lane: usize, a: E, b: E, c: E| {
        let values = f(a.widen(), b.widen(), c.widen());
        for (lanes, value) in sums.iter_mut().zip(values) {
            lanes[lane] += value;
        }
    };
    for ((a, b), c) in first_chunks.iter().zip(second_chunks).zip(third_chunks) {
        for lane in 0..LANES {
            add(lane, a[lane], b[lane], c[lane]);
        }
    }
    let rest = first_rest.iter().zip(second_rest).zip(third_rest);
    for (lane, ((&a, &b), &c)) in rest.enumerate() {
        add(lane, a, b, c);
    }
    sums.map(fold)
}

/// Sum of a slice in a fixed order that vectorises.
#[inline(always)]
pub(crate) fn sum<E: Element>(values: &[E]) -> E::Wide {
    let mut lanes = [E::Wide::ZERO; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += chunk[lane].widen();
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane += value.widen();
    }
    fold(lanes)
}

#[inline(always)]
fn fold<T: Float>(mut lanes: [T; LANES]) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::{dot, sum, vectorize};

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_line_of_a_range_is_prefetched_once() {
        let lines = |start: usize, bytes| -> Vec<usize> {
            let start = std::ptr::without_provenance(start);
            super::cache_lines(start, bytes).map(|line| line.addr()).collect()
        };
        assert_eq!(lines(6400, 192), [6400, 6464, 6528]);
        assert_eq!(lines(6416, 192), [6400, 6464, 6528, 6592]);
        assert_eq!(lines(6463, 1), [6400]);
        assert_eq!(lines(6463, 2), [6400, 6464]);
    }

    #[test]
    fn sums_and_dots_cover_the_tail() {
        for len in 0..70 {
            let values: Vec<f64> = (0..len).map(f64::from).collect();
            let exact = f64::from(len * (len - 1) / 2);
            assert_eq!(vectorize(|| sum(&values)), exact);
            let squares: f64 = values.iter().map(|v| v * v).sum();
            assert_eq!(vectorize(|| dot(&values, &values)), squares);
        }
    }
}
