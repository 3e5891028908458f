//! Probe of this rank's cores or device during the run: the matmul rate, which is the denominator
//! of `mfu_measured`.
//!
//! Other load during a probe lowers the rate, and so overstates the utilisation. Therefore the rate
//! is the best of several shapes, including the workload's largest product, at several moments of
//! the run, so that a noisy neighbour at one moment does not matter.
//!
//! On a CUDA device probes use only memory that is free. If there is too little, or if a library
//! refuses a product, less is measured, and the run continues.

use std::time::{Duration, Instant};

use device::{Allocator, Device, cuda};
use models::fused::{ProbeProduct, probe_shapes};
use models::ops::matmul::Shape;
use models::workload::Compute;

use crate::config::Config;
use crate::failure::Outcome;

/// Number of steps of an attempt after which the matmul rate is measured, including the first and
/// the last.
const MOMENTS: u64 = 4;
/// A product on a CUDA device that takes longer is the largest that is measured: the device has
/// reached its rate.
const LONG_ON_CUDA: Duration = Duration::from_millis(5);

/// Measures the matmul rate of one rank.
#[derive(Debug)]
pub(crate) struct MatmulProbe {
    compute: Compute,
    /// From the smallest.
    shapes: Vec<Shape>,
    on_cuda: bool,
    /// Time of the measurements at all moments together; zero disables them.
    budget: Duration,
    best_flops_per_second: Option<f64>,
}

impl MatmulProbe {
    /// Creates a probe of the products of a workload.
    pub(crate) fn new(config: &Config) -> Self {
        let workload = &config.workload;
        let options = config.fused_options(1);
        Self {
            compute: workload.precision.compute,
            shapes: probe_shapes(&workload.model, workload.batch.micro_batch(), options),
            on_cuda: options.on_cuda,
            budget: config.settings.telemetry.matmul_probe,
            best_flops_per_second: None,
        }
    }

    /// Returns whether to measure after this step of an attempt from step `first` to `last`.
    pub(crate) fn is_due(&self, step: u64, first: u64, last: u64) -> bool {
        let moment = |index| first + (last - first) * index / (MOMENTS - 1);
        !self.budget.is_zero() && (0..MOMENTS).any(|index| moment(index) == step)
    }

    /// Measures for one moment's share of the configured time.
    ///
    /// # Errors
    /// Those of [`measure`](Self::measure).
    pub(crate) fn measure_moment(&mut self, device: &Device) -> Outcome<()> {
        self.measure(device, self.budget / MOMENTS as u32).map(|_| ())
    }

    /// Returns the configured time of the measurements at all moments together.
    pub(crate) fn budget(&self) -> Duration {
        self.budget
    }

    /// Returns the host memory allocated for measuring with `threads` threads; little with a CUDA
    /// device.
    pub(crate) fn planned_bytes(&self, threads: usize) -> u64 {
        if self.on_cuda {
            return 0;
        }
        let bytes = |&shape: &Shape| {
            let allocator = Allocator::counting();
            drop(ProbeProduct::new(&allocator, self.compute, shape, threads));
            allocator.total_bytes()
        };
        // They follow each other.
        self.shapes.iter().map(bytes).max().unwrap_or(0)
    }

    /// Multiplies matrices of each shape until its part of the time is over, at least twice, and
    /// keeps the best rate so far. Returns whether all shapes were measured that the device has to
    /// be measured with.
    ///
    /// # Errors
    /// Those of the device while it computes.
    pub(crate) fn measure(&mut self, device: &Device, budget: Duration) -> Outcome<bool> {
        let part = budget / self.shapes.len().max(1) as u32;
        for shape in self.shapes.clone() {
            if !has_free(device, || ProbeProduct::bytes_on_cuda(self.compute, shape))? {
                return Ok(false);
            }
            let mut product = match self.product(device, shape) {
                Ok(product) => product,
                Err(models::Error::Device(cuda::Error::OutOfMemory { .. })) => return Ok(false),
                Err(models::Error::Device(
                    error @ (cuda::Error::Library { .. } | cuda::Error::NoPlan { .. }),
                )) => {
                    self.shapes.clear();
                    tracing::warn!("the matmul rate is not measured any more: {error}");
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            };
            if self.measure_product(&mut product, part)? > LONG_ON_CUDA && self.on_cuda {
                return Ok(true);
            }
        }
        Ok(!self.shapes.is_empty())
    }

    /// A product that has been computed once.
    fn product(&self, device: &Device, shape: Shape) -> Result<ProbeProduct, models::Error> {
        let threads = rayon::current_num_threads();
        let mut product = ProbeProduct::new(&device.allocator(), self.compute, shape, threads)?;
        product.time()?;
        Ok(product)
    }

    /// Returns the time of the last product.
    fn measure_product(
        &mut self,
        product: &mut ProbeProduct,
        budget: Duration,
    ) -> Outcome<Duration> {
        let end = Instant::now() + budget;
        loop {
            let time = product.time()?;
            self.record(product.flops(), time);
            if Instant::now() >= end {
                return Ok(time);
            }
        }
    }

    fn record(&mut self, flops: f64, time: Duration) {
        // An event's resolution is half a microsecond.
        let rate = flops / time.max(RESOLUTION).as_secs_f64();
        let best = self.best_flops_per_second.map_or(rate, |best| best.max(rate));
        self.best_flops_per_second = Some(best);
    }

    /// Returns the best rate so far in FLOP/s.
    pub(crate) fn flops_per_second(&self) -> Option<f64> {
        self.best_flops_per_second
    }
}

/// Shortest time that counts.
pub(super) const RESOLUTION: Duration = Duration::from_nanos(500);

/// Returns whether a CUDA device has twice as many bytes free: others may need some at that moment.
pub(super) fn has_free(device: &Device, bytes: impl FnOnce() -> u64) -> Outcome<bool> {
    Ok(match device {
        Device::Host => true,
        Device::Cuda(device) => device.free_bytes()? / 2 >= bytes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe() -> MatmulProbe {
        let settings = ["telemetry.matmul_probe=1ms".to_owned()];
        MatmulProbe::new(&Config::load("smoke", &settings).unwrap())
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
        probe.measure_moment(&Device::Host).unwrap();
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
