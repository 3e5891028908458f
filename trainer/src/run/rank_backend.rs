//! Backend of the operations of training between ranks: that of the world, or on CUDA devices NCCL
//! beside it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use collectives::{Collective, Nccl, Single};
use device::Device;
use launch::bootstrap::{Backend, World};
use record::MeshPlace;

use super::nccl_log::{self, LoggedGroup};
use super::peer_loss::{Registration, WatchedBackends};
use crate::config::Config;
use crate::failure::Outcome;
use crate::mesh::{self, Groups, Mesh, MeshShape, Placed};
use crate::ranks::Ranks;
use crate::step::placed_layout;

/// Size of the first buffers: from this size NCCL treats larger buffers alike.
const CONNECT_BYTES_MAX: usize = 64 << 20;

/// Backend of one rank's training.
#[derive(Debug)]
pub(super) struct RankBackend<'world> {
    all: AllRanks<'world>,
    shape: MeshShape,
    /// The groups of two dimensions, unless one is all there is.
    grid: Option<Grid>,
    alone: Single,
    logged: Vec<LoggedGroup>,
}

/// Ends of the group of all ranks.
#[derive(Debug)]
enum AllRanks<'world> {
    /// Backend of the world: ranks compute on the host.
    World(&'world dyn Collective),
    /// Only rank, on a device.
    Alone(Single),
    /// Several ranks, each on a device.
    Nccl { nccl: Arc<Nccl>, _registration: Registration<'world> },
}

#[derive(Debug)]
struct Grid {
    placed: Placed,
    /// Shard groups that span nodes although they need not.
    spanning: Option<String>,
    groups: Groups,
}

impl<'world> RankBackend<'world> {
    /// Opens the backend for the device of this rank. All ranks call this at the same time, with
    /// the same configuration. The loss of a peer ends its waits.
    pub(super) fn open(
        config: &Config,
        world: &'world World,
        device: &Device,
        peer_loss: &'world WatchedBackends,
    ) -> Outcome<Self> {
        let shape = MeshShape::of(&config.settings.parallel, world.collective.world())?;
        let all = AllRanks::open(config, world, device, shape, peer_loss)?;
        let sharded = config.settings.parallel.sharded;
        let world_size = all.collective().world();
        let ranks = (0..all.collective().world()).collect();
        let mut backend = Self {
            all,
            shape,
            grid: None,
            alone: Single::new(),
            logged: vec![LoggedGroup { ranks, end: u64::MAX }],
        };
        if !shape.is_grid() {
            let all = &backend.all;
            all.collective()
                .connect(mesh::operations(sharded, None), connect_bytes(config, world_size, 1))?;
            return Ok(backend);
        }
        let ranks = Ranks::new(&*world.collective, config.settings.collectives.deadline);
        let node_of_rank = ranks.gather(&world.placement.node)?;
        let placed = Placed::new(shape, &node_of_rank);
        backend.logged.clear();
        let groups = placed.open_lines(backend.all.collective(), |plan, line| {
            let parts = if plan.dimension == mesh::DATA_NAME { shape.shard } else { 1 };
            let operations = mesh::operations(sharded, Some(plan.dimension));
            line.connect(operations, connect_bytes(config, world_size, parts))?;
            let end = nccl_log::written_bytes();
            backend.logged.push(LoggedGroup { ranks: plan.ranks.clone(), end });
            Ok(())
        })?;
        let spanning = placed.spanning(&node_of_rank);
        backend.grid = Some(Grid { placed, spanning, groups });
        Ok(backend)
    }

    /// Returns the groups that NCCL has connected, in the order of its log.
    pub(super) fn logged(&self) -> &[LoggedGroup] {
        &self.logged
    }

    /// Returns all ranks.
    pub(super) fn collective(&self) -> &dyn Collective {
        self.all.collective()
    }

    /// Returns whether NCCL moves the data of devices.
    pub(super) fn is_nccl(&self) -> bool {
        matches!(self.all, AllRanks::Nccl { .. })
    }

    /// Returns the ends for training.
    pub(super) fn mesh(&self) -> Mesh<'_> {
        let world = self.collective();
        match &self.grid {
            Some(Grid { groups, .. }) => Mesh::of_groups(self.shape, world, groups),
            None => Mesh::line(self.shape, world, &self.alone),
        }
    }

    /// Returns the place of a rank, unless there is only one dimension.
    pub(super) fn place(&self, rank: usize) -> Option<MeshPlace> {
        self.grid.as_ref()?.placed.place(rank)
    }

    /// Returns a warning, for the record, of groups whose placement makes them slow.
    pub(super) fn warning_of_placement(&self) -> Option<String> {
        self.grid.as_ref()?.spanning.clone()
    }

    /// Closes everything that the world does not close, after a run that did not fail.
    pub(super) fn close(self, timeout: Duration) -> Result<(), collectives::Error> {
        match &self.all {
            AllRanks::World(_) | AllRanks::Alone(_) => Ok(()),
            AllRanks::Nccl { nccl, .. } => nccl.close(Instant::now() + timeout),
        }
    }
}

impl<'world> AllRanks<'world> {
    fn open(
        config: &Config,
        world: &'world World,
        device: &Device,
        shape: MeshShape,
        peer_loss: &'world WatchedBackends,
    ) -> Outcome<Self> {
        let settings = &config.settings.collectives;
        let of_world = &*world.collective;
        let Device::Cuda(device) = device else { return Ok(Self::World(of_world)) };
        if of_world.world() == 1 && settings.backend != Backend::Nccl {
            return Ok(Self::Alone(Single::new()));
        }
        let nccl = match shape.is_grid() {
            true => Nccl::open_for_groups(of_world, device, settings.deadline)?,
            false => Nccl::open(of_world, device, settings.deadline)?,
        };
        let nccl = Arc::new(nccl);
        Ok(Self::Nccl { _registration: peer_loss.register(nccl.clone()), nccl })
    }

    fn collective(&self) -> &dyn Collective {
        match self {
            Self::World(collective) => *collective,
            Self::Alone(single) => single,
            Self::Nccl { nccl, .. } => &**nccl,
        }
    }
}

/// Returns the size of the first buffers in a line whose ranks sum one of so many `parts` of each
/// bucket: that of the largest message, or one from which they are all alike.
fn connect_bytes(config: &Config, world: usize, parts: usize) -> usize {
    let (_, plan) = placed_layout(config, world);
    let longest = plan.buckets.iter().map(|bucket| bucket.range.len()).max().unwrap_or(0);
    (longest * size_of::<f32>() / parts).min(CONNECT_BYTES_MAX)
}
