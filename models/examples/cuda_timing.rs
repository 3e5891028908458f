//! Benchmark of each kernel and product of a workload on a CUDA device.
//!
//!     cuda_timing [--workload NAME] [--compute bf16|f32] [--micro-batch N] [--tokens N]
//!                 [--rounds N] [--small] [--json]
//!
//! For each operation the median time of several rounds, by CUDA events; the bytes that it must
//! read and write once, per second, as a share of a device-to-device copy measured in the same run;
//! and of products the FLOP/s. The copy runs before every measurement as well, so that no operation
//! finds its operands in a cache. `--small` is for the emulated device, where only the counts mean
//! anything.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::error::Error;
use std::process::ExitCode;

use device::cuda::{Cuda, Event};
use device::{Allocator, DeviceBuffer};
use serde::Serialize;
use yardstick_models::fused::CudaProbe;
use yardstick_models::meter::Work;
use yardstick_models::workload::Compute;
use yardstick_models::{ModelConfig, Workload, presets};

const WORKLOAD: &str = "gpt2-124m";
/// Bytes of each of the copy's two buffers: many times what caches hold.
const COPY_BYTES: usize = 1 << 30;
const SMALL_COPY_BYTES: usize = 1 << 20;
/// Rounds of an operation that are measured, after those that are not.
const ROUNDS: usize = 20;
const WARM_UP: usize = 3;

/// Workload and options of the measurement.
struct Options {
    name: String,
    workload: Workload,
    compute: Compute,
    rounds: usize,
    small: bool,
    json: bool,
}

impl Options {
    fn from_arguments() -> Result<Self, Box<dyn Error>> {
        let mut arguments = std::env::args().skip(1);
        let mut options = Self {
            name: WORKLOAD.to_owned(),
            workload: preset(WORKLOAD)?,
            compute: Compute::Bf16,
            rounds: ROUNDS,
            small: false,
            json: false,
        };
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--workload" => {
                    options.name = value()?;
                    options.workload = preset(&options.name)?;
                }
                "--compute" => options.compute = format_of(&value()?)?,
                "--micro-batch" => options.workload.batch.micro_sequences = value()?.parse()?,
                "--tokens" => options.workload.batch.sequence_tokens = value()?.parse()?,
                "--rounds" => options.rounds = value()?.parse()?,
                "--small" => options.reduce(),
                "--json" => options.json = true,
                _ => return Err(format!("unknown flag {flag}: see the head of the source").into()),
            }
        }
        Ok(options)
    }

    /// A model of the same family, small enough for the emulated device.
    fn reduce(&mut self) {
        let config = &mut self.workload.model;
        *config = ModelConfig {
            width: 64,
            heads: 2,
            feed_forward: 256,
            vocabulary: 500,
            context: 64,
            ..config.clone()
        };
        self.workload.batch.micro_sequences = 2;
        self.workload.batch.sequence_tokens = 32;
        self.rounds = 3;
        self.small = true;
    }
}

fn preset(name: &str) -> Result<Workload, String> {
    presets::load(name).ok_or_else(|| format!("no workload {name}"))
}

fn format_of(name: &str) -> Result<Compute, String> {
    [Compute::F32, Compute::Bf16]
        .into_iter()
        .find(|compute| compute.to_string() == name)
        .ok_or_else(|| format!("--compute {name}: expected f32 or bf16"))
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct Timing {
    device: String,
    workload: String,
    compute: String,
    micro_batch: usize,
    tokens: usize,
    rounds: usize,
    /// Bytes read and written.
    copy_gigabytes_per_second: f64,
    fastest_product_teraflops: f64,
    operations: Vec<Operation>,
}

/// One operation.
#[derive(Debug, Serialize)]
struct Operation {
    name: String,
    median_us: f64,
    bytes: f64,
    gigabytes_per_second: f64,
    share_of_copy: f64,
    flops: f64,
    /// `null` where there is no product.
    teraflops: Option<f64>,
}

impl Operation {
    fn new(name: String, seconds: f64, work: Work, copy_rate: f64) -> Self {
        let rate = work.bytes / seconds / 1e9;
        Self {
            name,
            median_us: seconds * 1e6,
            bytes: work.bytes,
            gigabytes_per_second: rate,
            share_of_copy: rate / copy_rate,
            flops: work.flops,
            teraflops: (work.flops > 0.0).then(|| work.flops / seconds / 1e12),
        }
    }
}

/// Measures on the compute stream.
struct Clock {
    device: Cuda,
    start: Event,
    end: Event,
    from: DeviceBuffer<u8>,
    to: DeviceBuffer<u8>,
    rounds: usize,
}

impl Clock {
    fn new(device: &Cuda, copy_bytes: usize, rounds: usize) -> Result<Self, Box<dyn Error>> {
        let allocator = Allocator::cuda(device);
        let mut clock = Self {
            device: device.clone(),
            start: Event::new(device)?,
            end: Event::new(device)?,
            from: allocator.zeros(copy_bytes),
            to: allocator.zeros(copy_bytes),
            rounds,
        };
        allocator.outcome()?;
        clock.device.fill(clock.from.view_mut(), 0x5a)?;
        Ok(clock)
    }

    fn copy(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(self.device.copy(self.to.view_mut(), self.from.view())?)
    }

    /// GB/s of the copy, read and written.
    fn copy_rate(&mut self) -> Result<f64, Box<dyn Error>> {
        let bytes = 2 * self.from.len();
        let seconds = self.median_seconds(Self::copy)?;
        Ok(bytes as f64 / seconds / 1e9)
    }

    /// The median time of something that is started on the stream.
    fn median_seconds(
        &mut self,
        mut run: impl FnMut(&mut Self) -> Result<(), Box<dyn Error>>,
    ) -> Result<f64, Box<dyn Error>> {
        let mut times_ns = Vec::with_capacity(self.rounds);
        for round in 0..WARM_UP + self.rounds {
            self.copy()?;
            self.start.record(self.device.compute())?;
            run(self)?;
            self.end.record(self.device.compute())?;
            let elapsed_ns = self.start.elapsed_ns(&self.end)?;
            if round >= WARM_UP {
                times_ns.push(elapsed_ns);
            }
        }
        times_ns.sort_unstable();
        // An event's resolution is half a microsecond.
        Ok(times_ns[times_ns.len() / 2].max(1) as f64 * 1e-9)
    }
}

fn measure(options: &Options, device: &Cuda) -> Result<Timing, Box<dyn Error>> {
    let Options { workload, compute, rounds, .. } = options;
    let micro_batch = workload.batch.micro_batch();
    let copy_bytes = if options.small { SMALL_COPY_BYTES } else { COPY_BYTES };
    let mut clock = Clock::new(device, copy_bytes, *rounds)?;
    let copy_rate = clock.copy_rate()?;
    let mut probe = CudaProbe::new(&workload.model, micro_batch, *compute, device)?;
    let mut operations = Vec::new();
    for (op, work) in probe.operations() {
        let seconds = clock.median_seconds(|_| Ok(probe.run(op)?))?;
        let (role, kind) = op;
        let name = format!("{} {}", role.name(), kind.name()).trim_end().to_owned();
        operations.push(Operation::new(name, seconds, work, copy_rate));
    }
    let rates = operations.iter().filter_map(|operation| operation.teraflops);
    Ok(Timing {
        device: device.properties().name.clone(),
        workload: options.name.clone(),
        compute: compute.to_string(),
        micro_batch: micro_batch.sequences,
        tokens: micro_batch.tokens,
        rounds: *rounds,
        copy_gigabytes_per_second: copy_rate,
        fastest_product_teraflops: rates.fold(0.0, f64::max),
        operations,
    })
}

fn print(timing: &Timing) {
    println!(
        "{}: {}, {}, {} x {}, median of {} rounds; device-to-device copy {:.0} GB/s",
        timing.device,
        timing.workload,
        timing.compute,
        timing.micro_batch,
        timing.tokens,
        timing.rounds,
        timing.copy_gigabytes_per_second
    );
    println!("{:24}{:>10}{:>10}{:>8}{:>10}", "", "us", "GB/s", "copy %", "TFLOP/s");
    for operation in &timing.operations {
        let teraflops = operation.teraflops.map_or(String::new(), |rate| format!("{rate:.1}"));
        println!(
            "{:24}{:10.1}{:10.0}{:8.0}{teraflops:>10}",
            operation.name,
            operation.median_us,
            operation.gigabytes_per_second,
            100.0 * operation.share_of_copy
        );
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let options = Options::from_arguments()?;
    let timing = measure(&options, &Cuda::open(0)?)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&timing)?);
    } else {
        print(&timing);
    }
    Ok(())
}

fn main() -> ExitCode {
    if let Err(error) = run() {
        eprintln!("cuda_timing: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
