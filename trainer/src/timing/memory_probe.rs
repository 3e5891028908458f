//! Probe of the memory bandwidth of this rank's cores or device, for a profile and for comparing
//! ranks.

use std::time::{Duration, Instant};

use device::cuda::{self, Cuda};
use device::{Device, DeviceBuffer};
use models::fused::Triad;

use super::matmul_probe::{RESOLUTION, has_free};
use crate::failure::Outcome;

/// Elements of each array of the triad, over all ranks of a machine: 64 MiB, more than most caches.
const TRIAD_ELEMENTS: usize = 16 << 20;
/// Bytes of each of the two buffers of a copy on a CUDA device: more than its caches hold.
const COPY_BYTES: usize = 128 << 20;
/// Copies that are measured together: the first one waits for its launch.
const COPIES: usize = 8;

/// Returns the host memory of a probe on the host.
pub(crate) fn planned_bytes(local_world: usize) -> u64 {
    (3 * (TRIAD_ELEMENTS / local_world) * size_of::<f32>()) as u64
}

/// Measures the memory bandwidth of one rank, over arrays that do not fit into caches.
#[derive(Debug)]
pub(crate) struct MemoryProbe<'run> {
    device: &'run Device,
    arrays: Arrays<'run>,
}

#[derive(Debug)]
enum Arrays<'run> {
    /// Arrays of STREAM's triad, a = b + s c.
    Triad(Triad),
    /// Copied on a CUDA device.
    Copies { device: &'run Cuda, from: DeviceBuffer<u8>, to: DeviceBuffer<u8> },
}

impl<'run> MemoryProbe<'run> {
    /// Allocates the share of one of a machine's `local_world` ranks, which measure at the same
    /// time; `None` if a device has too little memory free.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn new(device: &'run Device, local_world: usize) -> Outcome<Option<Self>> {
        let arrays = match device {
            Device::Host => Arrays::Triad(Triad::new(TRIAD_ELEMENTS / local_world)),
            Device::Cuda(_) if !has_free(device, || 2 * COPY_BYTES as u64)? => return Ok(None),
            Device::Cuda(cuda) => {
                let allocator = device.allocator();
                let [from, to] = [(); 2].map(|()| allocator.zeros::<u8>(COPY_BYTES));
                match allocator.outcome() {
                    Err(cuda::Error::OutOfMemory { .. }) => return Ok(None),
                    outcome => outcome?,
                }
                Arrays::Copies { device: cuda, from, to }
            }
        };
        Ok(Some(Self { device, arrays }))
    }

    /// Returns the rate of reads and writes together: the best of at least three passes within
    /// `budget`, after a warm-up.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn bytes_per_second(&mut self, budget: Duration) -> Outcome<f64> {
        self.pass()?;
        let end = Instant::now() + budget;
        let mut best = self.pass()?.min(self.pass()?).min(self.pass()?);
        while Instant::now() < end {
            best = best.min(self.pass()?);
        }
        Ok(self.bytes() as f64 / best.max(RESOLUTION).as_secs_f64())
    }

    /// Returns the bytes that a pass reads and writes.
    fn bytes(&self) -> usize {
        match &self.arrays {
            Arrays::Triad(triad) => triad.bytes(),
            Arrays::Copies { .. } => 2 * COPIES * COPY_BYTES,
        }
    }

    /// Returns the time of a pass.
    fn pass(&mut self) -> Outcome<Duration> {
        let Self { device, arrays } = self;
        device.time(|| match arrays {
            Arrays::Triad(triad) => {
                triad.pass();
                Ok(())
            }
            Arrays::Copies { device, from, to } => {
                (0..COPIES).try_for_each(|_| Ok(device.copy(to.view_mut(), from.view())?))
            }
        })
    }
}
