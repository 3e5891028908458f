//! Backend of the operations of training between ranks: that of the world, or on CUDA devices NCCL
//! beside it.

use std::time::{Duration, Instant};

use collectives::{Collective, Nccl, Operation, Single};
use device::Device;
use launch::bootstrap::{Backend, World};

use crate::config::Config;
use crate::failure::Outcome;

/// Size of the first buffers: from this size NCCL treats larger buffers alike.
const CONNECT_BYTES_MAX: usize = 64 << 20;

/// Backend of one rank's training.
#[derive(Debug)]
pub(super) enum RankBackend<'world> {
    /// Backend of the world: ranks compute on the host.
    World(&'world dyn Collective),
    /// Only rank, on a device.
    Alone(Single),
    /// Several ranks, each on a device.
    Nccl(Box<Nccl<'world>>),
}

impl<'world> RankBackend<'world> {
    /// Opens the backend for the device of this rank. All ranks call this at the same time, with
    /// the same configuration.
    pub(super) fn open(config: &Config, world: &'world World, device: &Device) -> Outcome<Self> {
        let settings = &config.settings.collectives;
        let of_world = &*world.collective;
        let Device::Cuda(device) = device else { return Ok(Self::World(of_world)) };
        if of_world.world() == 1 && settings.backend != Backend::Nccl {
            return Ok(Self::Alone(Single::new()));
        }
        let nccl = Nccl::open(of_world, device, settings.deadline)?;
        nccl.connect(operations(config), settings.bucket_bytes.min(CONNECT_BYTES_MAX))?;
        Ok(Self::Nccl(Box::new(nccl)))
    }

    /// Returns the backend.
    pub(super) fn collective(&self) -> &dyn Collective {
        match self {
            Self::World(collective) => *collective,
            Self::Alone(single) => single,
            Self::Nccl(nccl) => &**nccl,
        }
    }

    /// Closes everything that the world does not close, after a run that did not fail.
    pub(super) fn close(self, timeout: Duration) -> Result<(), collectives::Error> {
        match self {
            Self::World(_) | Self::Alone(_) => Ok(()),
            Self::Nccl(nccl) => nccl.close(Instant::now() + timeout),
        }
    }
}

/// Returns the operations of training on buffers of devices.
fn operations(config: &Config) -> &'static [Operation] {
    if config.settings.run.shard_optimizer {
        &[Operation::ReduceScatterSum, Operation::AllGather]
    } else {
        &[Operation::AllReduceSum]
    }
}
