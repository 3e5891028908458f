//! The choice of a product's algorithm by measurement.
//!
//! Algorithms are timed at the next start of a product, with the operands of that start: with
//! numbers and addresses of training, and without memory of their own.
#![allow(unsafe_code)] // starts products

use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t;
use device::cuda::{Error, Event};

use super::product::{Blas, Operands, Product, ProductShape, described, limits};
use crate::tuning::TunedProduct;

/// Most algorithms of a product that are timed.
const CANDIDATES_MAX: usize = 8;
/// Times of each algorithm, after one that warms up.
const ROUNDS: usize = 4;
/// Starts of a product in one time, so that it is more than the time of events.
const STARTS: u32 = 3;
/// Share of the first algorithm's time that another must gain: less is noise.
const GAIN_MIN: f64 = 0.02;

/// State of a product's measurement.
#[derive(Debug, Default)]
pub(super) struct Tuning {
    /// Algorithms to time at the next start.
    candidates: Vec<cublasLtMatmulAlgo_t>,
    measured: Option<TunedProduct>,
}

impl Tuning {
    /// Returns whether the next start times algorithms.
    pub(super) fn is_due(&self) -> bool {
        !self.candidates.is_empty()
    }
}

/// An algorithm with its best time so far.
struct Timed {
    algorithm: cublasLtMatmulAlgo_t,
    position: usize,
    best_ns: u64,
}

impl Product {
    /// Lets the next start time the algorithms that the library offers; the one in use is the
    /// first, and the only one where it offers none now.
    pub(crate) fn begin_tuning(&mut self, blas: &Blas) {
        let offered = self.offered(blas, CANDIDATES_MAX).unwrap_or_default();
        let first = self.algorithm;
        let others = offered.into_iter().filter(|other| other.data != first.data);
        let candidates = std::iter::once(first).chain(others);
        self.tuning.candidates = candidates.take(CANDIDATES_MAX).collect();
    }

    /// The result of the measurement, once.
    pub(crate) fn take_measured(&mut self) -> Option<TunedProduct> {
        self.tuning.measured.take()
    }

    /// Returns whether the library accepts an algorithm that was chosen for this product.
    pub(crate) fn accepts_tuned(&self, blas: &Blas, tuned: &TunedProduct) -> bool {
        let algorithm = cublasLtMatmulAlgo_t { data: tuned.algorithm };
        tuned.product == self.key() && self.accepts(blas, &algorithm)
    }

    /// Uses an algorithm that the library accepts.
    pub(crate) fn adopt(&mut self, tuned: &TunedProduct) {
        self.algorithm = cublasLtMatmulAlgo_t { data: tuned.algorithm };
    }

    /// Everything that an algorithm is chosen for.
    pub(crate) fn key(&self) -> String {
        let ProductShape { a_stride, b_stride, d_stride, .. } = self.shape;
        let product = described(&self.shape, self.epilogue);
        format!("{product}, strides {a_stride} {b_stride} {d_stride}, {}", limits())
    }

    /// Times all algorithms, in turn, so that a change of the device's clocks meets all of them.
    ///
    /// # Safety
    /// As [`Product::run`].
    pub(super) unsafe fn measure(
        &mut self,
        blas: &mut Blas,
        operands: Operands,
    ) -> Result<(), Error> {
        let candidates = std::mem::take(&mut self.tuning.candidates).into_iter().enumerate();
        let timed = |(position, algorithm)| Timed { algorithm, position, best_ns: u64::MAX };
        let mut timed: Vec<_> = candidates.map(timed).collect();
        for round in 0..=ROUNDS {
            for Timed { algorithm, position, best_ns } in &mut timed {
                // SAFETY: as this function.
                let time_ns = unsafe { self.time(blas, operands, algorithm, *position) }?;
                let is_warm = round > 0;
                if let Some(time_ns) = time_ns.filter(|_| is_warm) {
                    *best_ns = time_ns.min(*best_ns);
                }
            }
        }
        let first_ns = timed[0].best_ns;
        let limit_ns = (first_ns as f64 * (1.0 - GAIN_MIN)) as u64;
        let faster = timed.iter().filter(|other| other.best_ns <= limit_ns);
        let chosen = faster.min_by_key(|other| other.best_ns).unwrap_or(&timed[0]);
        self.tuning.measured = Some(TunedProduct {
            product: self.key(),
            algorithm: chosen.algorithm.data,
            position: chosen.position,
            first_ns,
            chosen_ns: chosen.best_ns,
        });
        Ok(())
    }

    /// The time of one product by an algorithm; `None` if the library does not start it. It has to
    /// start the first.
    ///
    /// # Safety
    /// As [`Product::run`].
    unsafe fn time(
        &mut self,
        blas: &mut Blas,
        operands: Operands,
        algorithm: &cublasLtMatmulAlgo_t,
        position: usize,
    ) -> Result<Option<u64>, Error> {
        let device = blas.device().clone();
        let [start, end] = [Event::new(&device)?, Event::new(&device)?];
        start.record(device.compute())?;
        for _ in 0..STARTS {
            // SAFETY: as this function; what was written before is overwritten or added to.
            match unsafe { self.start(blas, operands, algorithm) } {
                Err(_) if position > 0 => return Ok(None),
                started => started.map_err(|refusal| self.not_started(&refusal))?,
            }
        }
        end.record(device.compute())?;
        Ok(Some(start.elapsed_ns(&end)? / u64::from(STARTS)))
    }
}
