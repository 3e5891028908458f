//! Cost of a step for the detector of slow ranks, by the number of ranks: `bench/slow_ranks.sh`.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement")]

use std::time::Instant;

use record::Random;
use record::phase::{ByPhase, PhaseTimes};
use record::slow_ranks::{Detector, OwnTime, Rule, StepTimes};
use record::statistics::Distribution;

const STEPS: usize = 640;

/// Different steps, which are repeated.
const DIFFERENT: usize = 16;

fn step_times(noise: &mut Random) -> StepTimes {
    let seconds = 1.0 + 0.02 * noise.normal();
    let phases = PhaseTimes { forward: (seconds * 1e9) as u64, ..ByPhase::default() };
    OwnTime::of_step(&phases, 0).into()
}

fn main() {
    for ranks in [64, 1024, 16_384] {
        let mut noise = Random(1);
        let mut step = || (0..ranks).map(|_| step_times(&mut noise)).collect::<Vec<_>>();
        let steps: Vec<_> = (0..DIFFERENT).map(|_| step()).collect();
        let mut detector = Detector::new(vec![(0..ranks).collect()], Rule::default());
        let micros = (0..STEPS).map(|step| {
            let times = steps[step % DIFFERENT].iter().copied();
            let start = Instant::now();
            detector.take(step as u64 + 1, 1.0, times);
            start.elapsed().as_secs_f64() * 1e6
        });
        let micros: Vec<f64> = micros.collect();
        let Distribution { median, mean, .. } = Distribution::of(micros.iter().copied()).unwrap();
        let most = micros.iter().copied().fold(0.0, f64::max);
        println!("{ranks} ranks: {mean:.0} us a step (median {median:.0}, longest {most:.0})");
    }
}
