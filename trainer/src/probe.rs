//! The matmul rate of this rank's cores, measured in the run itself: the denominator of
//! `mfu_measured`.

use std::time::{Duration, Instant};

use models::ops::matmul::{self, Epilogue, Shape, Workspace};

/// Side of the square product. Its three matrices fill 12 MiB: large enough for the rate of the
/// workload's own products, small enough for a short probe.
const SIDE: usize = 1024;

/// Multiplies square f32 matrices for `budget` and returns the best rate in FLOP/s, over at least
/// three products after one that warms up. `None` for an empty budget.
///
/// The best and not the median, because this is to be what the cores can do: whatever else runs on
/// them during the probe only makes it smaller, and so the utilisation larger than it is.
pub(crate) fn matmul_flops_per_second(budget: Duration) -> Option<f64> {
    if budget.is_zero() {
        return None;
    }
    let left = vec![0.5_f32; SIDE * SIDE];
    let right = vec![0.25_f32; SIDE * SIDE];
    let mut product = vec![0.0_f32; SIDE * SIDE];
    let shape = Shape { rows: SIDE, inputs: SIDE, outputs: SIDE };
    let mut workspace = Workspace::new(rayon::current_num_threads());
    let mut once = || {
        let start = Instant::now();
        let epilogue = (None, Epilogue::Store);
        matmul::forward(&mut product, &left, &right, epilogue, shape, &mut workspace);
        start.elapsed().as_secs_f64()
    };
    once();
    let end = Instant::now() + budget;
    let mut seconds = (0..3).map(|_| once()).fold(f64::INFINITY, f64::min);
    while Instant::now() < end {
        seconds = seconds.min(once());
    }
    Some(2.0 * (SIDE * SIDE * SIDE) as f64 / seconds)
}
