//! How fast one thread makes the synthetic tokens of `smoke`; `bench/data.sh` calls it.
//!
//! Prints tokens per second: the median of the batches of a second, after one that warms up.
#![allow(clippy::print_stdout, reason = "a program")]

use std::path::Path;
use std::time::{Duration, Instant};

use trainer::config::Config;
use trainer::data::{Sequences, Source};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::load("smoke", &[]).map_err(|failure| failure.to_string())?;
    let (batch, vocabulary) = (&config.workload.batch, config.workload.model.vocabulary);
    let length = batch.sequence_tokens;
    let sequences =
        Source::open(&config.workload.data, vocabulary, Path::new("."))?.training(length)?;
    let mut buffers = (vec![0; length], vec![0; length]);
    once(&*sequences, 0, &mut buffers);
    let (mut rates, end) = (Vec::new(), Instant::now() + Duration::from_secs(1));
    while Instant::now() < end {
        rates.push(once(&*sequences, 1 + rates.len() as u64, &mut buffers));
    }
    rates.sort_by(f64::total_cmp);
    println!("{:.0}", rates[rates.len() / 2]);
    Ok(())
}

/// Sequences that are timed together: the clock is no part of it.
const TOGETHER: u64 = 64;

/// Tokens per second of one batch.
fn once(
    sequences: &dyn Sequences,
    batch: u64,
    (inputs, targets): &mut (Vec<u32>, Vec<u32>),
) -> f64 {
    let start = Instant::now();
    for index in batch * TOGETHER..(batch + 1) * TOGETHER {
        sequences.fill(index, inputs, targets);
        std::hint::black_box((&inputs, &targets));
    }
    (TOGETHER as usize * inputs.len()) as f64 / start.elapsed().as_secs_f64()
}
