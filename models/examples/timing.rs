//! How fast the fused engine is on this machine, and how its matmuls are: B=4, T=256, GPT-2 124M.

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::time::Instant;

use yardstick_models::config::Family;
use yardstick_models::fused::Fused;
use yardstick_models::ops::matmul;
use yardstick_models::{Batch, Layout, Model, ModelConfig, Pass, StepSink};

struct Flat {
    layout: Layout,
    gradients: Vec<f32>,
}

impl StepSink for Flat {
    fn gradient(&mut self, segment: usize) -> &mut [f32] {
        &mut self.gradients[self.layout.segments()[segment].range.clone()]
    }

    fn complete(&mut self, _segment: usize) {}

    fn enter(&mut self, _pass: Pass) {}
}

const CONFIG: ModelConfig = ModelConfig {
    family: Family::Gpt,
    layers: 12,
    width: 768,
    heads: 12,
    feed_forward: 3072,
    vocabulary: 50257,
    context: 1024,
};

fn best_of(rounds: usize, mut work: impl FnMut()) -> f64 {
    let seconds = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..rounds).map(seconds).fold(f64::INFINITY, f64::min)
}

fn products(threads: usize) {
    let mut workspace = matmul::Workspace::new(threads);
    for (inputs, outputs) in [(768, 2304), (768, 768), (768, 3072), (3072, 768), (2048, 2048)] {
        let shape = matmul::Shape { rows: 1024, inputs, outputs };
        let (x, w) = (vec![0.5_f32; 1024 * inputs], vec![0.5_f32; inputs * outputs]);
        let mut y = vec![0.5_f32; 1024 * outputs];
        let (mut dx, mut dw) = (x.clone(), w.clone());
        let forward = best_of(5, || matmul::forward(&mut y, &x, &w, None, shape, &mut workspace));
        let input = best_of(5, || matmul::backward_input(&mut dx, &y, &w, shape, &mut workspace));
        let weight = best_of(5, || matmul::backward_weight(&mut dw, &y, &x, shape, &mut workspace));
        let rate = |seconds: f64| (2 * 1024 * inputs * outputs) as f64 / seconds / 1e9;
        let (forward, input, weight) = (rate(forward), rate(input), rate(weight));
        println!(
            "{inputs:5} -> {outputs:5}: Y {forward:4.0} dX {input:4.0} dW {weight:4.0} GFLOP/s"
        );
    }
}

fn model() {
    let (sequences, tokens) = (4, 256);
    let layout = Layout::new(&CONFIG);
    let mut engine = Fused::new(&CONFIG, layout.clone(), sequences, tokens).expect("an engine");
    let weights: Vec<f32> =
        (0..layout.len()).map(|i| (i * 7919 % 1000) as f32 * 4e-5 - 0.02).collect();
    let mut sink = Flat { gradients: vec![0.0; layout.len()], layout };
    let ids =
        |offset| (0..sequences * tokens).map(|i| ((i + offset) * 97 % 50257) as u32).collect();
    let (inputs, targets): (Vec<u32>, Vec<u32>) = (ids(0), ids(1));
    let batch = Batch { inputs: &inputs, targets: &targets };
    let mut step = || {
        engine.train(Weights::F32(&weights), batch, 1e-3, &mut sink).expect("a step");
    };
    step();
    let before = cpu_seconds();
    let seconds = best_of(3, step);
    let busy = (cpu_seconds() - before) / 3.0;
    let rows = (sequences * tokens) as f64;
    let matrices = 12 * 12 * 768 * 768 + 50257 * 768;
    let rate = 6.0 * matrices as f64 * rows / seconds / 1e9;
    println!("{:.0} tokens/s, {rate:.0} GFLOP/s in matmuls without attention", rows / seconds);
    println!("{:.0} tokens per CPU second, whatever else ran", rows / busy);
}

/// User time of this process so far (Linux, in ticks of 10 ms).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc/self/stat");
    stat.split(' ').nth(13).and_then(|ticks| ticks.parse().ok()).map_or(0.0, |t: f64| t / 100.0)
}

fn main() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("a thread pool");
    pool.install(|| {
        products(2);
        model();
    });
}
