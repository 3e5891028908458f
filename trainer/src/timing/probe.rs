//! Probes of this rank's cores during the run: the matmul rate, which is the denominator of
//! `mfu_measured`, and for a profile the memory bandwidth.
//!
//! Other load on the cores during a probe lowers the rate, and so overstates the utilisation.
//! Therefore the rate is the best of several shapes, including the workload's largest product, at
//! several moments of the run, so that a noisy neighbour at one moment does not matter.

use std::time::{Duration, Instant};

use device::Allocator;
use models::fused::{ProbeProduct, probe_shapes};
use models::ops::matmul::Shape;
use models::workload::{Compute, Workload};
use rayon::prelude::*;

/// Number of steps of an attempt after which the matmul rate is measured, including the first and
/// the last.
const MOMENTS: u64 = 4;

/// Measures the matmul rate of one rank.
#[derive(Debug)]
pub(crate) struct MatmulProbe {
    compute: Compute,
    shapes: Vec<Shape>,
    /// Time of the measurements at all moments together; zero disables them.
    budget: Duration,
    best_flops_per_second: Option<f64>,
}

impl MatmulProbe {
    /// Creates a probe of the products of a workload.
    pub(crate) fn new(workload: &Workload, budget: Duration) -> Self {
        let shapes = probe_shapes(&workload.model, workload.batch.micro_batch());
        Self { compute: workload.precision.compute, shapes, budget, best_flops_per_second: None }
    }

    /// Returns whether to measure after this step of an attempt from step `first` to `last`.
    pub(crate) fn is_due(&self, step: u64, first: u64, last: u64) -> bool {
        let moment = |index| first + (last - first) * index / (MOMENTS - 1);
        !self.budget.is_zero() && (0..MOMENTS).any(|index| moment(index) == step)
    }

    /// Measures for one moment's share of the configured time.
    pub(crate) fn measure_moment(&mut self) {
        self.measure(self.budget / MOMENTS as u32);
    }

    /// Returns the memory allocated for measuring with `threads` threads.
    pub(crate) fn planned_bytes(&self, threads: usize) -> u64 {
        let allocator = Allocator::counting();
        self.products(threads, &allocator);
        allocator.total_bytes()
    }

    fn products(&self, threads: usize, allocator: &Allocator) -> Vec<ProbeProduct> {
        let product = |&shape| ProbeProduct::new(allocator, self.compute, shape, threads);
        self.shapes.iter().map(product).collect()
    }

    /// Multiplies matrices of every shape in turn until the time is over, each at least twice, and
    /// keeps the best rate so far.
    pub(crate) fn measure(&mut self, budget: Duration) {
        let mut products = self.products(rayon::current_num_threads(), &Allocator::host());
        let end = Instant::now() + budget;
        products.iter_mut().for_each(ProbeProduct::multiply); // warm-up
        loop {
            for product in &mut products {
                let start = Instant::now();
                product.multiply();
                self.record(product.flops(), start.elapsed());
            }
            if Instant::now() >= end {
                return;
            }
        }
    }

    fn record(&mut self, flops: f64, time: Duration) {
        let rate = flops / time.as_secs_f64();
        let best = self.best_flops_per_second.map_or(rate, |best| best.max(rate));
        self.best_flops_per_second = Some(best);
    }

    /// Returns the best rate so far in FLOP/s.
    pub(crate) fn flops_per_second(&self) -> Option<f64> {
        self.best_flops_per_second
    }
}

/// Elements of each array of the triad, over all ranks of a machine: 64 MiB, more than most caches.
const TRIAD_ELEMENTS: usize = 16 << 20;
/// Elements per task of a thread.
const CHUNK_ELEMENTS: usize = 1 << 16;

/// Returns the memory allocated by [`memory_bytes_per_second`].
pub(crate) fn triad_bytes(local_world: usize) -> u64 {
    (3 * (TRIAD_ELEMENTS / local_world) * size_of::<f32>()) as u64
}

/// Measures memory bandwidth by STREAM's triad, a = b + s c: two reads and one write per element,
/// over arrays that do not fit into caches. Returns the best of at least three passes within
/// `budget`, after a warm-up.
///
/// Each of a machine's `local_world` ranks processes its share of the arrays at the same time.
pub(crate) fn memory_bytes_per_second(local_world: usize, budget: Duration) -> f64 {
    let elements = TRIAD_ELEMENTS / local_world;
    let [mut a, b, c] = [0.0_f32, 1.0, 2.0].map(|value| vec![value; elements]);
    let mut once = || {
        let start = Instant::now();
        let operands = b.par_chunks(CHUNK_ELEMENTS).zip(c.par_chunks(CHUNK_ELEMENTS));
        a.par_chunks_mut(CHUNK_ELEMENTS).zip(operands).for_each(|(a, (b, c))| {
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

/// Returns the shortest time of several calls, after a warm-up.
fn best_seconds(budget: Duration, once: &mut dyn FnMut() -> f64) -> f64 {
    once();
    let end = Instant::now() + budget;
    let mut seconds = (0..3).map(|_| once()).fold(f64::INFINITY, f64::min);
    while Instant::now() < end {
        seconds = seconds.min(once());
    }
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe() -> MatmulProbe {
        let workload = models::presets::load("smoke").unwrap();
        MatmulProbe::new(&workload, Duration::from_millis(1))
    }

    #[test]
    fn a_slow_first_moment_does_not_lower_the_rate() {
        let mut probe = probe();
        probe.record(1e9, Duration::from_secs(1)); // other load on the cores
        probe.record(1e9, Duration::from_millis(10));
        probe.record(1e9, Duration::from_millis(20));
        assert_eq!(probe.flops_per_second(), Some(1e11));
    }

    #[test]
    fn moments_after_a_slowed_one_raise_the_rate() {
        let mut probe = probe();
        probe.record(1.0, Duration::from_secs(1));
        probe.measure_moment();
        assert!(probe.flops_per_second().unwrap() > 1e6, "{probe:?}");
    }

    #[test]
    fn moments_are_spread_over_the_attempt_including_its_ends() {
        let due = |first, last| -> Vec<u64> {
            (first..=last).filter(|&step| probe().is_due(step, first, last)).collect()
        };
        assert_eq!(due(1, 200), [1, 67, 133, 200]);
        assert_eq!(due(101, 200), [101, 134, 167, 200]);
        assert_eq!((due(1, 1), due(5, 6)), (vec![1], vec![5, 6]));
        let disabled = MatmulProbe { budget: Duration::ZERO, ..probe() };
        assert!(!disabled.is_due(1, 1, 200));
    }
}
