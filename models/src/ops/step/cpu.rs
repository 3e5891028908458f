//! Ops of an update in the host's memory, on the threads of the rayon pool.

use std::ops::Range;

use device::cuda::Error;
use device::{View, ViewMut};
use half::bf16;

use super::{ALL_FINITE, AdamWViews, Decays, StepOps, UpdatedViews};
use crate::Weights;
use crate::layout::ALIGN;
use crate::ops::adamw::{self, AdamW};
use crate::ops::{gradient_norm, gradient_sum, update_norm};

/// The host, which needs no preparation.
#[derive(Debug)]
pub(super) struct Host;

/// Consecutive elements of a call that all decay, or none of them.
struct Run {
    range: Range<usize>,
    decays: bool,
}

/// The runs of a call of so many elements.
fn runs(decays: Decays<'_>, len: usize) -> impl Iterator<Item = Run> {
    let Decays { blocks, first } = decays;
    let blocks = &blocks.host()[first / ALIGN..(first + len).div_ceil(ALIGN)];
    let mut end = 0;
    let mut block = first / ALIGN;
    blocks.chunk_by(|a, b| a == b).map(move |equal| {
        let start = end;
        block += equal.len();
        end = (block * ALIGN - first).min(len);
        Run { range: start..end, decays: equal[0] != 0 }
    })
}

impl StepOps for Host {
    fn clear(&self, values: ViewMut<'_, f64>) -> Result<(), Error> {
        values.host().fill(0.0);
        Ok(())
    }

    fn clear_search(&self, first: ViewMut<'_, u64>) -> Result<(), Error> {
        first.host().fill(ALL_FINITE);
        Ok(())
    }

    fn clear_gradients(&self, gradients: ViewMut<'_, f32>) -> Result<(), Error> {
        crate::ops::clear(gradients.host());
        Ok(())
    }

    fn add_gradients(&self, sums: ViewMut<'_, f32>, x: View<'_, f32>) -> Result<(), Error> {
        gradient_sum::add(sums.host(), x.host());
        Ok(())
    }

    fn copy(&self, to: ViewMut<'_, f32>, from: View<'_, f32>) -> Result<(), Error> {
        to.host().copy_from_slice(from.host());
        Ok(())
    }

    fn narrow(&self, working: ViewMut<'_, bf16>, weights: View<'_, f32>) -> Result<(), Error> {
        adamw::narrow(working.host(), weights.host());
        Ok(())
    }

    fn adamw(&self, views: AdamWViews<'_>, decays: Decays<'_>, adamw: &AdamW) -> Result<(), Error> {
        let AdamWViews { weights, working, gradients, exp_avg, exp_avg_sq } = views;
        let (weights, gradients) = (weights.host(), gradients.host());
        let (first, second) = (exp_avg.host(), exp_avg_sq.host());
        let mut working = working.map(ViewMut::host);
        let without_decay = AdamW { weight_decay: 0.0, ..*adamw };
        for Run { range, decays } in runs(decays, weights.len()) {
            let weights = &mut weights[range.clone()];
            let gradients = &gradients[range.clone()];
            let first = &mut first[range.clone()];
            let second = &mut second[range.clone()];
            let adamw = if decays { adamw } else { &without_decay };
            match &mut working {
                None => adamw::step(weights, gradients, first, second, adamw),
                Some(working) => {
                    let working = &mut working[range];
                    adamw::step_and_narrow(weights, working, gradients, first, second, adamw);
                }
            }
        }
        Ok(())
    }

    fn add_sums(
        &mut self,
        sums: ViewMut<'_, f64>,
        x: Weights<'_>,
        first: usize,
    ) -> Result<(), Error> {
        let found = match x {
            Weights::F32(x) => gradient_norm::sums(x.host(), first),
            Weights::Bf16(x) => gradient_norm::sums(x.host(), first),
        };
        let sums = sums.host();
        sums[0] += found.weighted;
        sums[1] += found.squares;
        Ok(())
    }

    fn add_update_squares(
        &mut self,
        sums: ViewMut<'_, f64>,
        views: UpdatedViews<'_>,
        adamw: &AdamW,
    ) -> Result<(), Error> {
        let UpdatedViews { weights, exp_avg, exp_avg_sq } = views;
        let moments = [exp_avg.host(), exp_avg_sq.host()];
        let found = update_norm::update_squares(weights.host(), moments[0], moments[1], adamw);
        let sums = sums.host();
        sums[0] += found.weights;
        sums[1] += found.update;
        Ok(())
    }

    fn first_non_finite(&self, first: ViewMut<'_, u64>, x: View<'_, f32>) -> Result<(), Error> {
        let found = gradient_norm::first_non_finite(x.host());
        let first = &mut first.host()[0];
        *first = found.map_or(*first, |index| (*first).min(index as u64));
        Ok(())
    }
}
