//! Measures how fast one thread generates the synthetic tokens of `smoke`, for `bench/data.sh`.
//!
//! Prints tokens per second: the median over the batches of one second, after a warm-up.
#![allow(clippy::print_stdout, reason = "a program")]

use std::time::{Duration, Instant};

use trainer::config::Config;
use trainer::data::{Locations, Sequences, Source};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let workload = Config::load("smoke", &[]).map_err(|failure| failure.to_string())?.workload;
    let source = Source::open(&workload.data, workload.model.vocabulary, &Locations::default())?;
    let sequence_tokens = workload.batch.sequence_tokens;
    let mut generator = Generator {
        sequences: &*source.training(sequence_tokens)?,
        inputs: vec![0; sequence_tokens],
        targets: vec![0; sequence_tokens],
    };
    generator.tokens_per_second(0);
    let mut rates = Vec::new();
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        rates.push(generator.tokens_per_second(1 + rates.len() as u64));
    }
    rates.sort_by(f64::total_cmp);
    println!("{:.0}", rates[rates.len() / 2]);
    Ok(())
}

/// Sequences that are timed together, so that reading the clock takes no measurable time.
const BATCH_SEQUENCES: u64 = 64;

struct Generator<'a> {
    sequences: &'a dyn Sequences,
    inputs: Vec<u32>,
    targets: Vec<u32>,
}

impl Generator<'_> {
    /// Generates one batch.
    fn tokens_per_second(&mut self, batch: u64) -> f64 {
        let Self { sequences, inputs, targets } = self;
        let start = Instant::now();
        for index in batch * BATCH_SEQUENCES..(batch + 1) * BATCH_SEQUENCES {
            sequences.fill(index, inputs, targets);
            std::hint::black_box((&inputs, &targets));
        }
        (BATCH_SEQUENCES as usize * inputs.len()) as f64 / start.elapsed().as_secs_f64()
    }
}
