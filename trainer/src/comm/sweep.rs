//! Sweep of collective operations over a range of sizes.

use std::time::{Duration, Instant};

use collectives::{AllToAll, Channel, Parts};
use device::{Device, DeviceBuffer};
use launch::bootstrap::World;
use serde::Serialize;

use super::operation::CommOperation;
use super::pattern::{count_wrong, fill};
use super::{CommOptions, MEASURE_TIME};
use crate::failure::Outcome;
use crate::ranks::Ranks;

/// Result of one operation on one size.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Row {
    pub operation: CommOperation,
    /// Size of the buffer: of all parts together where each rank has one.
    pub bytes: u64,
    pub elements: u64,
    /// Timed with a copy of the input into the buffer first, as by a caller who keeps the input.
    pub out_of_place: Measured,
    pub in_place: Measured,
}

/// Means over iterations and ranks.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Measured {
    pub time_us: f64,
    pub algbw_bytes_per_second: f64,
    pub busbw_bytes_per_second: f64,
    /// Wrong elements of all ranks, after one more operation.
    pub wrong: u64,
}

/// Iterations of a size, unless their number is given.
const ITERATIONS: std::ops::RangeInclusive<u32> = 2..=100;

/// Number of buffers of the largest size that must fit.
const BUFFERS: u64 = 4;

/// Share of the available memory to use: the rest is left to other processes.
const MEMORY_SHARE: f64 = 0.5;

/// Measures on one rank.
pub(super) struct Sweep<'run> {
    options: &'run CommOptions,
    device: &'run Device,
    ranks: Ranks<'run>,
    bytes_max: u64,
    buffers: Buffers,
    notes: Vec<String>,
}

/// Memory for the largest size; smaller ones use its beginning.
struct Buffers {
    /// Contribution of the rank.
    input: Vec<f32>,
    /// Contribution on the device, unless that is the host.
    on_device: DeviceBuffer<f32>,
    /// Buffer that is communicated.
    shared: DeviceBuffer<f32>,
    /// Buffer from which an all-to-all sends.
    sent: DeviceBuffer<f32>,
    exchange: AllToAll,
}

/// Operation on the beginning of the buffers.
#[derive(Clone, Copy)]
struct Call {
    operation: CommOperation,
    elements: usize,
}

impl<'run> Sweep<'run> {
    /// Allocates the buffers, smaller ones if the largest does not fit on every rank.
    pub(super) fn new(
        options: &'run CommOptions,
        world: &World,
        device: &'run Device,
        ranks: Ranks<'run>,
    ) -> Outcome<Self> {
        let available = match device {
            Device::Host => {
                launch::available_memory_bytes().map(|all| all / world.placement.local_world as u64)
            }
            Device::Cuda(device) => Some(device.free_bytes()?),
        };
        let fits = available.map_or(f64::MAX, |bytes| MEMORY_SHARE * bytes as f64 / BUFFERS as f64);
        let least = over_ranks(&ranks, fits)?.into_iter().fold(f64::MAX, f64::min);
        let mut bytes_max = options.bytes_min;
        while bytes_max.saturating_mul(options.factor) <= options.bytes_max.min(least as u64) {
            bytes_max *= options.factor;
        }
        let mut notes = Vec::new();
        if bytes_max.saturating_mul(options.factor) <= options.bytes_max {
            notes.push(format!("larger sizes than {bytes_max} bytes do not fit into memory"));
        }
        let elements = elements(bytes_max, ranks.world());
        let is_on_host = matches!(device, Device::Host);
        let allocator = device.allocator();
        let has_all_to_all = options.operations.contains(&CommOperation::AllToAll);
        let buffers = Buffers {
            input: vec![0.0; elements],
            on_device: allocator.zeros(if is_on_host { 0 } else { elements }),
            shared: ranks.collective.buffer(&allocator, elements, ranks.deadline())?,
            sent: allocator.zeros(if has_all_to_all { elements } else { 0 }),
            exchange: AllToAll::new(device, ranks.world()),
        };
        allocator.outcome()?;
        Ok(Self { options, device, ranks, bytes_max, buffers, notes })
    }

    /// Returns notes about what the user may not expect.
    pub(super) fn into_notes(self) -> Vec<String> {
        self.notes
    }

    /// Measures all sizes of an operation.
    pub(super) fn measure(&mut self, operation: CommOperation) -> Outcome<Vec<Row>> {
        let mut rows = Vec::new();
        let mut bytes = self.options.bytes_min;
        while bytes <= self.bytes_max {
            let elements = elements(bytes, self.ranks.world());
            rows.push(self.row(Call { operation, elements })?);
            bytes *= self.options.factor;
        }
        Ok(rows)
    }

    fn row(&mut self, call: Call) -> Outcome<Row> {
        let Call { operation, elements } = call;
        let world = self.ranks.world();
        fill(operation, self.ranks.rank(), world, &mut self.buffers.input[..elements]);
        if let Device::Cuda(device) = self.device {
            let Buffers { input, on_device, .. } = &mut self.buffers;
            device.write(on_device.view_mut().slice(0..elements), &input[..elements])?;
        }
        let bytes = (elements * size_of::<f32>()) as u64;
        let measured = |time: Duration, wrong| {
            let algbw = bytes as f64 / time.as_secs_f64();
            Measured {
                time_us: time.as_secs_f64() * 1e6,
                algbw_bytes_per_second: algbw,
                busbw_bytes_per_second: algbw * operation.bus_factor(world),
                wrong,
            }
        };
        let time = self.time(call, true)?;
        let out_of_place = measured(time, self.wrong(call)?);
        let time = self.time(call, false)?;
        self.restore(call)?;
        self.run(call)?;
        let in_place = measured(time, self.wrong(call)?);
        Ok(Row { operation, bytes, elements: elements as u64, out_of_place, in_place })
    }

    /// Returns the mean time of an operation, over iterations and ranks; `copies` the input each
    /// time.
    fn time(&mut self, call: Call, copies: bool) -> Outcome<Duration> {
        let once = |sweep: &mut Self| {
            if copies {
                sweep.restore(call)?;
            }
            sweep.run(call)
        };
        once(self)?; // connections are made
        let iterations = match self.options.iterations {
            Some(iterations) => iterations,
            None => {
                let start = Instant::now();
                once(self)?;
                let slowest = over_ranks(&self.ranks, start.elapsed().as_secs_f64())?;
                let slowest = slowest.into_iter().fold(1e-9, f64::max);
                let fitting = (MEASURE_TIME.as_secs_f64() / slowest) as u32;
                fitting.clamp(*ITERATIONS.start(), *ITERATIONS.end())
            }
        };
        self.ranks.collective.barrier(self.ranks.deadline())?;
        let start = Instant::now();
        for _ in 0..iterations {
            once(self)?;
        }
        let seconds = start.elapsed().as_secs_f64() / f64::from(iterations);
        let all = over_ranks(&self.ranks, seconds)?;
        Ok(Duration::from_secs_f64(all.iter().sum::<f64>() / all.len() as f64))
    }

    /// Runs an operation in place, and waits for it. An all-to-all sends from a copy.
    fn run(&mut self, Call { operation, elements }: Call) -> Outcome<()> {
        let Self { ranks: Ranks { collective, .. }, device, .. } = *self;
        let deadline = self.ranks.deadline();
        let Buffers { shared, sent, exchange, .. } = &mut self.buffers;
        let mut buffer = shared.view_mut().slice(0..elements);
        if let Some(operation) = operation.of_backend() {
            collective.run(Channel::Data, operation, buffer, deadline)?;
            return Ok(());
        }
        let mut sent = sent.view_mut().slice(0..elements);
        device.copy(sent.reborrow(), buffer.as_view())?;
        let lens = vec![elements / collective.world(); collective.world()];
        let parts = |elements| Parts { elements, lens: &lens };
        exchange.run(collective, parts(sent), parts(buffer.reborrow()), deadline)?;
        Ok(())
    }

    /// Copies the input into the buffer.
    fn restore(&mut self, Call { elements, .. }: Call) -> Outcome<()> {
        let Buffers { input, on_device, shared, .. } = &mut self.buffers;
        let buffer = shared.view_mut().slice(0..elements);
        match self.device {
            Device::Host => buffer.host().copy_from_slice(&input[..elements]),
            Device::Cuda(device) => device.copy(buffer, on_device.view().slice(0..elements))?,
        }
        Ok(())
    }

    /// Returns the number of wrong elements of all ranks.
    fn wrong(&self, Call { operation, elements }: Call) -> Outcome<u64> {
        let mut found = vec![0.0; elements];
        self.device.read(self.buffers.shared.view().slice(0..elements), &mut found)?;
        let own = count_wrong(operation, self.ranks.rank(), self.ranks.world(), &found);
        Ok(over_ranks(&self.ranks, own as f64)?.iter().sum::<f64>() as u64)
    }
}

/// Returns how many elements fit, rounded up to a multiple of the number of ranks.
fn elements(bytes: u64, world: usize) -> usize {
    (bytes as usize / size_of::<f32>()).next_multiple_of(world)
}

/// Gathers a number from every rank.
fn over_ranks(ranks: &Ranks<'_>, own: f64) -> Outcome<Vec<f64>> {
    let mut all = vec![0.0; ranks.world()];
    all[ranks.rank()] = own;
    ranks.collective.all_gather(&mut all, ranks.deadline())?;
    Ok(all)
}
