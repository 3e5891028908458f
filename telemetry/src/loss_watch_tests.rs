//! Tests with falling losses, noise that depends on the previous step, and spikes.

use super::LossWatch;
use record::Random;

const SEEDS: u64 = 200;
const STEPS: u64 = 600;
const LIMIT: f64 = 8.0;

/// Course of the losses of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Curve {
    /// Steps in which the part of the loss to be learned shrinks to 1/e.
    fall_steps: f64,
    /// Standard deviation of the noise, nats per token.
    noise: f64,
    /// Correlation of the noise of two consecutive steps.
    correlation: f64,
}

/// Curves from fast, with much noise, to slow, with little; and from independent noise to noise
/// that almost only drifts.
fn curves() -> impl Iterator<Item = Curve> {
    let correlations = [0.0, 0.6, 0.9, 0.97].into_iter();
    correlations.flat_map(|correlation| {
        [(15.0, 0.08), (60.0, 0.02), (250.0, 0.005)].map(|(fall_steps, noise)| Curve {
            fall_steps,
            noise,
            correlation,
        })
    })
}

fn losses(curve: Curve, seed: u64) -> Vec<f64> {
    let mut random = Random(seed);
    let Curve { fall_steps, noise, correlation } = curve;
    let mut state = random.normal();
    let mut loss = |step: u64| {
        state = correlation * state + (1.0 - correlation * correlation).sqrt() * random.normal();
        3.0 + 7.8 * (-(step as f64) / fall_steps).exp() + noise * state
    };
    (1..=STEPS).map(&mut loss).collect()
}

/// Steps in which spikes begin.
fn spikes(losses: &[f64]) -> Vec<u64> {
    let mut watch = LossWatch::new(LIMIT);
    let observed = (1..).zip(losses).map(|(step, loss)| watch.observe(step, *loss));
    observed.filter_map(|it| it.spike).map(|spike| spike.step).collect()
}

#[test]
fn hardly_a_curve_without_a_spike_has_one() {
    let mut wrong = Vec::new();
    for curve in curves() {
        let found = |seed| (seed, spikes(&losses(curve, seed)));
        let found = (0..SEEDS).map(found).filter(|(_, steps)| !steps.is_empty());
        wrong.extend(found.map(|(seed, steps)| (curve, seed, steps)));
    }
    let most_of_one = curves().map(|curve| wrong.iter().filter(|it| it.0 == curve).count()).max();
    assert!(most_of_one <= Some(SEEDS as usize / 20), "{wrong:?}");
    let share = wrong.len() as f64 / (curves().count() as u64 * SEEDS) as f64;
    assert!(share <= 0.01, "{share}: {wrong:?}");
}

/// A spike of fifteen standard deviations or more that falls back over five steps. Not in the first
/// steps: while the loss falls fast, residuals vary more than its noise does.
#[test]
fn a_spike_is_found_once_and_in_its_step() {
    for curve in curves() {
        let size = (15.0 * curve.noise).max(0.1);
        let mut found = 0;
        for seed in 0..SEEDS {
            let mut losses = losses(curve, seed);
            let at = 300 + seed as usize;
            losses.truncate(at + 20);
            (0..5).for_each(|after| losses[at + after] += size / (1.0 + after as f64));
            found += u64::from(spikes(&losses) == [at as u64 + 1]);
        }
        assert!(found >= 194, "{curve:?}: {found} of {SEEDS}");
    }
}

#[test]
fn the_first_steps_have_no_z_score_and_a_level_is_told_once() {
    let mut watch = LossWatch::new(LIMIT);
    for step in 1..=72 {
        assert_eq!(watch.observe(step, 3.0).z_score, None, "step {step}");
    }
    let z_score = watch.observe(73, 3.003).z_score.unwrap();
    assert!((z_score - 1.0).abs() < 1e-9, "a thousandth of the loss: {z_score}");
    let spike = |watch: &mut LossWatch, step| watch.observe(step, 7.0).spike;
    let first = spike(&mut watch, 74).unwrap();
    assert_eq!((first.step, first.loss, first.before), (74, 7.0, 3.0));
    assert!((75..400).all(|step| spike(&mut watch, step).is_none()));
}

#[test]
fn a_limit_of_zero_finds_none() {
    let mut watch = LossWatch::new(0.0);
    let mut observe = |step| watch.observe(step, if step == 100 { 1e30 } else { 3.0 });
    let last = (1..=100).map(&mut observe).last().unwrap();
    assert_eq!((last.z_score, last.spike), (Some(1e6), None));
}
