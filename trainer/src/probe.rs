//! What this rank's cores can do, measured in the run itself: the matmul rate, the denominator of
//! `mfu_measured`, and for a profile the memory bandwidth.

use std::time::{Duration, Instant};

use models::fused::SquareProduct;
use models::workload::Compute;
use rayon::prelude::*;

/// Side of the square product. Its three matrices fill 12 MiB: large enough for the rate of the
/// workload's own products, small enough for a short probe.
const SIDE: usize = 1024;

/// What [`matmul_flops_per_second`] allocates on so many threads.
pub(crate) fn matmul_bytes(compute: Compute, threads: usize) -> usize {
    SquareProduct::planned_bytes(compute, SIDE, threads)
}

/// Multiplies square matrices of a format for `budget` and returns the best rate in FLOP/s, over at
/// least three products after one that warms up. `None` for an empty budget.
///
/// The best and not the median, because this is to be what the cores can do: whatever else runs on
/// them during the probe only makes it smaller, and so the utilisation larger than it is.
pub(crate) fn matmul_flops_per_second(compute: Compute, budget: Duration) -> Option<f64> {
    if budget.is_zero() {
        return None;
    }
    let mut square = SquareProduct::new(compute, SIDE);
    let mut once = || {
        let start = Instant::now();
        square.multiply();
        start.elapsed().as_secs_f64()
    };
    let seconds = best_seconds(budget, &mut once);
    Some(square.flops() / seconds)
}

/// Elements of each array of the triad, over all ranks of a machine: 64 MiB, beyond the caches of
/// most.
const TRIAD: usize = 16 << 20;
/// Elements that one thread takes at a time.
const PIECE: usize = 1 << 16;

/// What [`memory_bytes_per_second`] allocates.
pub(crate) fn triad_bytes(local_world: usize) -> usize {
    3 * (TRIAD / local_world) * size_of::<f32>()
}

/// Bytes per second of a = b + s c over arrays beyond the caches, two reads and a write, as the
/// triad of STREAM counts them; the best for `budget`, of at least three after one that warms up.
///
/// Of a machine's `local_world` ranks each takes its part.
pub(crate) fn memory_bytes_per_second(local_world: usize, budget: Duration) -> f64 {
    let elements = TRIAD / local_world;
    let [mut a, b, c] = [0.0_f32, 1.0, 2.0].map(|value| vec![value; elements]);
    let mut once = || {
        let start = Instant::now();
        let operands = b.par_chunks(PIECE).zip(c.par_chunks(PIECE));
        a.par_chunks_mut(PIECE).zip(operands).for_each(|(a, (b, c))| {
            for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
                *a = b + 3.0 * c;
            }
        });
        std::hint::black_box(&a);
        start.elapsed().as_secs_f64()
    };
    let seconds = best_seconds(budget, &mut once);
    (3 * elements * size_of::<f32>()) as f64 / seconds
}

/// The shortest of several calls, after one that warms up.
fn best_seconds(budget: Duration, once: &mut dyn FnMut() -> f64) -> f64 {
    once();
    let end = Instant::now() + budget;
    let mut seconds = (0..3).map(|_| once()).fold(f64::INFINITY, f64::min);
    while Instant::now() < end {
        seconds = seconds.min(once());
    }
    seconds
}
