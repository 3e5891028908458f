//! The matmul rate of this rank's cores, measured in the run itself: the denominator of
//! `mfu_measured`.

use std::time::{Duration, Instant};

use half::bf16;
use models::ops::Element;
use models::ops::matmul::{self, Epilogue, Shape, Workspace};
use models::workload::Compute;

/// Side of the square product. Its three matrices fill 12 MiB: large enough for the rate of the
/// workload's own products, small enough for a short probe.
const SIDE: usize = 1024;

/// Multiplies square matrices of a format for `budget` and returns the best rate in FLOP/s, over at
/// least three products after one that warms up. `None` for an empty budget.
///
/// The best and not the median, because this is to be what the cores can do: whatever else runs on
/// them during the probe only makes it smaller, and so the utilisation larger than it is.
pub(crate) fn matmul_flops_per_second(compute: Compute, budget: Duration) -> Option<f64> {
    if budget.is_zero() {
        return None;
    }
    Some(match compute {
        Compute::F32 => best_rate::<f32>(budget, |value| value),
        Compute::Bf16 => best_rate(budget, bf16::from_f32),
    })
}

fn best_rate<E: Element>(budget: Duration, element: impl Fn(f32) -> E) -> f64 {
    let matrix = |value| vec![element(value); SIDE * SIDE];
    let (left, right, mut product) = (matrix(0.5), matrix(0.25), matrix(0.0));
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
    2.0 * (SIDE * SIDE * SIDE) as f64 / seconds
}
