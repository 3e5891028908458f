//! Benchmark of the ops with products, and of activations: GPT-2 124M, B=4, T=256.
//!
//! `timing 2` (the default) measures two threads in wall time, which needs an otherwise idle
//! machine. `timing 1` measures one thread in CPU time, which other processes disturb only through
//! the caches. The best of many short rounds is shown: disturbances only make rounds slower.

#![allow(clippy::print_stdout, reason = "a program for people")]
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use device::Allocator;
use half::bf16;
use yardstick_models::ops::matmul::{self, Epilogue, Shape, Sums};
use yardstick_models::ops::{Element, Float, attention, cross_entropy, swiglu};

const ROWS: usize = 1024;
/// Inputs and outputs of the linear layers, and a square for comparison with other libraries.
const LAYERS: [(usize, usize); 5] =
    [(768, 2304), (768, 768), (768, 3072), (3072, 768), (2048, 2048)];

/// Seconds of the fastest call within the budget, of at least three.
fn best_of(budget: Duration, mut work: impl FnMut()) -> f64 {
    best_of_changed(budget, &mut (), |()| (), |()| work())
}

/// Seconds of the fastest of at least three calls that modify `data`, prepared before each.
fn best_of_changed<T>(
    budget: Duration,
    data: &mut T,
    prepare: impl Fn(&mut T),
    mut work: impl FnMut(&mut T),
) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    let mut rounds = 0;
    while rounds < 3 || start.elapsed() < budget {
        prepare(data);
        let before = seconds(start);
        work(data);
        best = best.min(seconds(start) - before);
        rounds += 1;
    }
    best
}

/// CPU time of this thread where it is the only one, else wall time since `start`, in seconds.
fn seconds(start: Instant) -> f64 {
    const THREAD_CPU_TIME: i32 = 3; // of Linux
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
    }
    let alone = rayon::current_num_threads() == 1;
    if alone && cfg!(all(target_os = "linux", target_pointer_width = "64")) {
        let mut time = [0; 2];
        // SAFETY: on 64-bit Linux a timespec is two numbers of 64 bits, seconds and nanoseconds.
        let status = unsafe { clock_gettime(THREAD_CPU_TIME, &mut time) };
        assert_eq!(status, 0, "the clock of CPU time");
        return time[0] as f64 + time[1] as f64 * 1e-9;
    }
    start.elapsed().as_secs_f64()
}

/// Numbers in (-0.2, 0.2): no product of a layer becomes so large that its GELU is subnormal.
fn numbers<E: Element>(len: usize) -> Vec<E> {
    let number = |index: usize| E::Wide::from_f64((index * 7919 % 1009) as f64 * 4e-4 - 0.2);
    (0..len).map(|index| E::narrow(number(index))).collect()
}

fn products<E: Element>(threads: usize, budget: Duration) {
    let mut workspace = matmul::Workspace::<E>::new(&Allocator::host(), threads);
    for (inputs, outputs) in LAYERS {
        let shape = Shape { rows: ROWS, inputs, outputs };
        let x = numbers::<E>(ROWS * inputs);
        let dy = numbers::<E>(ROWS * outputs);
        let weight = numbers::<E>(inputs * outputs);
        let bias = numbers::<E>(outputs);
        let mut y = dy.clone();
        let mut activation = dy.clone();
        let mut dx = x.clone();
        let mut dweight = numbers::<E::Wide>(inputs * outputs);
        let workspace = &mut workspace;
        let rate = |work: &mut dyn FnMut()| {
            (2 * ROWS * inputs * outputs) as f64 / best_of(budget, work) / 1e9
        };
        let y_rate = rate(&mut || {
            matmul::forward(&mut y, &x, &weight, (None, Epilogue::Store), shape, workspace);
        });
        let gelu = rate(&mut || {
            let epilogue = (Some(bias.as_slice()), Epilogue::Gelu(&mut activation));
            matmul::forward(&mut y, &x, &weight, epilogue, shape, workspace);
        });
        let dx_rate =
            rate(&mut || matmul::backward_input(&mut dx, &dy, &weight, None, shape, workspace));
        let write = rate(&mut || {
            matmul::backward_weight(&mut dweight, &dy, &x, Sums::Write, shape, workspace);
        });
        let add = rate(&mut || {
            matmul::backward_weight(&mut dweight, &dy, &x, Sums::Add, shape, workspace);
        });
        println!(
            "  {inputs:4} -> {outputs:4}: Y {y_rate:5.0} (bias and GELU {gelu:5.0}), \
             dX {dx_rate:5.0}, dW {write:5.0} (added {add:5.0})"
        );
    }
}

fn attentions<E: Element>(threads: usize, budget: Duration) {
    for (sequences, tokens, heads, key_value_heads) in
        [(4, 256, 12, 12), (1, 1024, 12, 12), (1, 1024, 12, 4)]
    {
        let shape = attention::Shape { sequences, tokens, heads, key_value_heads, head_width: 64 };
        let rows = sequences * tokens;
        let qkv = numbers::<E>(rows * shape.qkv_width());
        let doutput = numbers::<E>(rows * shape.width());
        let mut output = doutput.clone();
        let mut dqkv = qkv.clone();
        let mut log_sums = numbers::<E::Wide>(rows * heads);
        let mut workspace = attention::Workspace::new(&Allocator::host(), threads, &shape);
        // Causal: half of T x T.
        let products = |count: usize| (count * rows * tokens * heads * 64) as f64 / 1e9;
        let forward = best_of(budget, || {
            attention::forward(&mut output, &mut log_sums, &qkv, shape, &mut workspace);
        });
        let backward = best_of(budget, || {
            let kept = (output.as_slice(), log_sums.as_slice());
            attention::backward(&mut dqkv, &doutput, &qkv, kept, shape, &mut workspace);
        });
        println!(
            "  {sequences} x {tokens}, {heads} heads of 64 on {key_value_heads}: \
             forward {:5.0} ({:.2} ms), backward {:5.0} ({:.2} ms)",
            products(2) / forward,
            forward * 1e3,
            products(5) / backward,
            backward * 1e3
        );
    }
}

fn head<E: Element>(threads: usize) {
    let width = 768;
    let vocabulary = 50257;
    let tokens = cross_entropy::chunk_tokens::<E>(ROWS, vocabulary, cross_entropy::LOGITS_BYTES);
    let hidden = numbers::<E>(tokens * width);
    let table = numbers::<E>(vocabulary * width);
    let targets: Vec<u32> = (0..tokens).map(|i| (i * 97 % vocabulary) as u32).collect();
    let shape = cross_entropy::Shape { tokens, width, vocabulary };
    let workspace = &mut cross_entropy::Workspace::<E>::new(&Allocator::host(), tokens, vocabulary);
    let packs = &mut matmul::Workspace::<E>::new(&Allocator::host(), threads);
    let mut dhidden = hidden.clone();
    let mut dtable = vec![E::Wide::ZERO; table.len()];
    let rate =
        |count: usize, seconds| (2 * count * tokens * width * vocabulary) as f64 / seconds / 1e9;
    let budget = Duration::from_secs(1);
    let forward = best_of(budget, || {
        cross_entropy::logits(workspace, &hidden, &table, shape, packs);
        cross_entropy::loss(workspace, &targets, shape);
    });
    let scale = E::Wide::from_f64(1e-3);
    let backward = best_of(budget, || {
        // Backward overwrites the logits, so each round computes them first.
        cross_entropy::logits(workspace, &hidden, &table, shape, packs);
        cross_entropy::loss(workspace, &targets, shape);
        cross_entropy::to_gradient(workspace, &targets, scale, shape);
        cross_entropy::hidden_gradient(&mut dhidden, &table, shape, workspace, packs);
        cross_entropy::table_gradient(&mut dtable, Sums::Add, &hidden, shape, workspace, packs);
    });
    println!(
        "  head, {tokens} tokens: forward {:5.0}, with backward {:5.0} ({:.0} ms)",
        rate(1, forward),
        rate(3, backward),
        backward * 1e3
    );
}

/// Ops without products, in GB/s of what they must read and write.
fn activations<E: Element>(budget: Duration) {
    const WIDTH: usize = 3072;
    let gate_up = numbers::<E>(2 * ROWS * WIDTH);
    let rate =
        |count: usize, seconds: f64| (count * ROWS * WIDTH * size_of::<E>()) as f64 / seconds / 1e9;
    let mut rows = (numbers::<E>(ROWS * WIDTH), gate_up.clone());
    let forward = best_of(budget, || swiglu::forward(&mut rows.0, &gate_up, WIDTH));
    // It overwrites its input.
    let refill = |rows: &mut (Vec<E>, Vec<E>)| rows.1.copy_from_slice(&gate_up);
    let recomputed = best_of_changed(budget, &mut rows, refill, |(hidden, gate_up)| {
        swiglu::recompute(hidden, gate_up, WIDTH);
    });
    println!("  GB/s: SwiGLU {:.1} (recomputed {:.1})", rate(3, forward), rate(5, recomputed));
}

fn all<E: Element>(name: &str, threads: usize) {
    let budget = Duration::from_millis(250);
    println!("{name} with {}, {threads} threads, GFLOP/s:", matmul::kernel_name::<E>());
    products::<E>(threads, budget);
    attentions::<E>(threads, budget);
    activations::<E>(budget);
    head::<E>(threads);
}

fn main() {
    let threads = std::env::args().nth(1).map_or(2, |count| count.parse().expect("threads"));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool");
    pool.install(|| {
        all::<bf16>("bf16", threads);
        all::<f32>("f32", threads);
    });
}
