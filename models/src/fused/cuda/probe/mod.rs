//! Runs each kernel and product of a network alone, for measuring how fast it is on a device.
//!
//! Buffers, kernels and planned products are those of training, made by the same constructors, for
//! a model that has one block. All numbers are random: some devices compute faster on constants.
//!
//! `calls.rs` runs an operation, `work.rs` lists them with what they have to do, `update.rs` has
//! those of the optimizer's step.

mod calls;
mod update;
mod work;

use device::cuda::Cuda;
use device::{Allocator, DeviceBuffer, ViewMut};
use half::bf16;

use self::update::Update;
use super::batch::Tokens;
use super::buffers::{Buffers, Saved, Scratch, Workspaces};
use super::kernels::Kernels;
use crate::fused::options::{LOGITS_BYTES_ON_CUDA, Options};
use crate::fused::parameter_ranges::ParameterRanges;
use crate::fused::size::Size;
use crate::meter::Op;
use crate::meter::Work;
use crate::ops::embedding::cuda::TokenGroups;
use crate::ops::kernels::CudaElement;
use crate::ops::row_sums::cuda::ColumnSums;
use crate::ops::{Element, Float};
use crate::rng::{Purpose, Stream};
use crate::workload::Compute;
use crate::{Batch, Error, Layout, MicroBatch, ModelConfig};

/// Of all numbers: they do not depend on a run.
const SEED: u64 = 0;
/// Numbers are in (-SPREAD, SPREAD).
const SPREAD: f64 = 0.1;
/// Random numbers that a buffer repeats.
const PATTERN: usize = 1 << 20;

/// The operations of one block, of the embeddings, of the head and of the update.
#[derive(Debug)]
pub struct CudaProbe {
    operations: Formats,
}

#[derive(Debug)]
enum Formats {
    F32(Box<Operations<f32>>),
    Bf16(Box<Operations<bf16>>),
}

/// What they compute with.
#[derive(Debug)]
struct Operations<E: CudaElement> {
    size: Size,
    ranges: ParameterRanges,
    weights: DeviceBuffer<E>,
    gradients: DeviceBuffer<f32>,
    saved: Saved<E>,
    scratch: Scratch<E>,
    tokens: Tokens,
    groups: Groups,
    kernels: Kernels,
    column_sums: ColumnSums,
    update: Update,
}

/// The rows of each distinct token of the micro-batch.
#[derive(Debug)]
struct Groups {
    order: DeviceBuffer<u32>,
    starts: DeviceBuffer<u32>,
    ids: DeviceBuffer<u32>,
    /// Distinct tokens.
    count: usize,
}

impl CudaProbe {
    /// Allocates everything on the device, compiles the kernels, and runs every operation once.
    ///
    /// # Errors
    /// When the device lacks the memory, or refuses a kernel.
    pub fn new(
        config: &ModelConfig,
        micro_batch: MicroBatch,
        compute: Compute,
        device: &Cuda,
    ) -> Result<Self, Error> {
        config.check_micro_batch(micro_batch)?;
        let config = ModelConfig { layers: 1, ..config.clone() };
        let operations = match compute {
            Compute::F32 => {
                Formats::F32(Box::new(Operations::new(&config, micro_batch, compute, device)?))
            }
            Compute::Bf16 => {
                Formats::Bf16(Box::new(Operations::new(&config, micro_batch, compute, device)?))
            }
        };
        let mut probe = Self { operations };
        for (op, _) in probe.operations() {
            probe.run(op)?;
        }
        device.synchronize()?;
        Ok(probe)
    }

    /// What can be run, with what each run has to do. A linear layer's
    /// operation includes its epilogue, a norm's backward the sums of its parameters' gradients.
    pub fn operations(&self) -> Vec<(Op, Work)> {
        match &self.operations {
            Formats::F32(operations) => operations.list(),
            Formats::Bf16(operations) => operations.list(),
        }
    }

    /// Starts one operation on the stream that computes.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Panics
    /// When it is none of [`operations`](Self::operations).
    pub fn run(&mut self, op: Op) -> Result<(), Error> {
        match &mut self.operations {
            Formats::F32(operations) => operations.run(op),
            Formats::Bf16(operations) => operations.run(op),
        }
    }
}

impl<E: CudaElement> Operations<E> {
    fn new(
        config: &ModelConfig,
        micro_batch: MicroBatch,
        compute: Compute,
        device: &Cuda,
    ) -> Result<Self, Error> {
        let logits_bytes = LOGITS_BYTES_ON_CUDA;
        let options = Options { threads: 1, on_cuda: true, logits_bytes, ..compute.into() };
        let size = Size::new(config, micro_batch, options);
        let layout = Layout::new(config);
        let allocator = Allocator::cuda(device);
        let Buffers { saved, scratch } = Buffers::new(&allocator, config, &size);
        let mut operations = Self {
            ranges: ParameterRanges::new(&layout, config),
            weights: allocator.zeros(layout.len()),
            gradients: allocator.zeros(layout.len()),
            saved,
            scratch,
            tokens: Tokens::new(&allocator, size.rows),
            groups: Groups::new(&allocator, size.rows),
            update: Update::new(&allocator, device, layout.len(), compute)?,
            kernels: Kernels::new::<E>(device, &size, Workspaces::new(&allocator, &size))?,
            column_sums: ColumnSums::new::<E>(device)?,
            size,
        };
        allocator.outcome()?;
        operations.send_tokens()?;
        operations.randomize()?;
        Ok(operations)
    }

    /// Tokens at random, and the lists of their rows.
    fn send_tokens(&mut self) -> Result<(), Error> {
        let Self { size, tokens, groups, kernels, .. } = self;
        let stream = Stream::new(SEED, Purpose::Test);
        let token = |row| stream.below(row, size.vocabulary as u64) as u32;
        let rows: Vec<u32> = (0..size.rows as u64).map(token).collect();
        kernels.tokens.send(tokens, Batch { inputs: &rows, targets: &rows })?;
        let sent = kernels.tokens.send_groups(tokens, &rows)?;
        groups.keep(&kernels.device, sent)
    }

    /// Whatever an operation reads before another has written it.
    fn randomize(&mut self) -> Result<(), Error> {
        let Self { weights, gradients, saved, scratch, kernels, .. } = self;
        let device = &kernels.device;
        randomize(device, weights.view_mut())?;
        randomize(device, gradients.view_mut())?;
        randomize(device, saved.streams.view_mut())?;
        randomize(device, saved.normed2.view_mut())?;
        randomize(device, saved.expanded.view_mut())?;
        randomize(device, scratch.normed.view_mut())?;
        randomize(device, scratch.branch.view_mut())?;
        randomize(device, scratch.gradient.view_mut())?;
        randomize(device, scratch.wide.view_mut())?;
        self.update.randomize(device)
    }
}

impl Groups {
    fn new(allocator: &Allocator, rows: usize) -> Self {
        Self {
            order: allocator.zeros(rows),
            starts: allocator.zeros(rows + 1),
            ids: allocator.zeros(rows),
            count: 0,
        }
    }

    /// Copies lists that were sent: the buffers they were sent to are needed again.
    fn keep(&mut self, device: &Cuda, sent: TokenGroups<'_>) -> Result<(), Error> {
        let count = sent.ids.len();
        device.copy(self.order.view_mut(), sent.order)?;
        device.copy(self.starts.view_mut().slice(0..count + 1), sent.starts)?;
        device.copy(self.ids.view_mut().slice(0..count), sent.ids)?;
        self.count = count;
        Ok(())
    }

    fn view(&self) -> TokenGroups<'_> {
        TokenGroups {
            order: self.order.view(),
            starts: self.starts.view().slice(0..self.count + 1),
            ids: self.ids.view().slice(0..self.count),
        }
    }
}

/// Fills a buffer with random numbers.
fn randomize<E: Element>(device: &Cuda, mut values: ViewMut<'_, E>) -> Result<(), Error> {
    let stream = Stream::new(SEED, Purpose::Test);
    let number = |index| E::narrow(E::Wide::from_f64(SPREAD * stream.signed(index)));
    let pattern: Vec<E> = (0..PATTERN.min(values.len()) as u64).map(number).collect();
    let len = values.len();
    for start in (0..len).step_by(PATTERN) {
        let end = len.min(start + PATTERN);
        device.write(values.reborrow().slice(start..end), &pattern[..end - start])?;
    }
    Ok(())
}
