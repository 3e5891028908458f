//! `yardstick doctor`: checks whether hosts, networks, GPUs and storage are fit for training, on
//! all ranks with one table.
//!
//! `launch::doctor` defines checks, and has those of a host. This module has the checks that need a
//! GPU (`gpus.rs`, `gpu_health.rs`, `xid.rs`), a tier (`tiers.rs`, `object_store.rs`), or the other
//! ranks (`alike.rs`, `clock.rs`, `links.rs`, `transports.rs`). `catalog.rs` lists all of them,
//! `report.rs` merges the findings of the ranks, and `table.rs` prints them.

mod alike;
mod catalog;
mod clock;
mod gpu_health;
mod gpus;
mod links;
mod object_store;
mod report;
mod table;
mod tiers;
mod transports;
mod xid;

use std::path::PathBuf;
use std::time::Instant;

use launch::bootstrap::World;
use launch::doctor::{Check, Context, Finding, HOST_CHECKS, Scope, Status};
use serde::{Deserialize, Serialize};

pub use catalog::Required;
pub use report::DoctorReport;

use crate::checkpoints::tiers::{Planned, planned};
use crate::config::Config;
use crate::config::Variables;
use crate::failure::Outcome;
use crate::plan::{JobShape, RankPlan, device_bytes_of_rank, with_chosen_recompute};
use crate::ranks::Ranks;
use crate::run::{self, Exit, NcclLog, WatchedBackends};
use gpu_health::{Ecc, GpuClocks, GpuMemory, GpuPcie};
use gpus::Gpus;
use record::ExitCode;
use tiers::TierCheck;
use xid::{XID, Xids};

/// Options of the doctor.
#[derive(Debug, Clone)]
pub struct DoctorOptions {
    /// Resolved configuration.
    pub config: Config,
    /// True if the workload was named, so that its memory counts.
    pub has_workload: bool,
    /// Folder that a run would use.
    pub out: Option<PathBuf>,
    /// Checks that must pass.
    pub required: Required,
    /// Measures links on any number of nodes.
    pub links: bool,
}

/// Checks all ranks; `print` receives the report on rank 0. Exits with 3 if a check failed.
///
/// # Errors
/// Exit code 3 if ranks cannot be joined, 5 if one is lost or late.
pub fn run(
    options: &DoctorOptions,
    print: impl FnOnce(&DoctorReport) -> Outcome<()> + Send,
) -> Outcome<Exit> {
    // First, while there is no other thread.
    let nccl_log = NcclLog::prepare(&options.config);
    let mut status = Status::Pass;
    let exit = run::joined(&options.config, |world, peer_loss| {
        let deadline = options.config.settings.collectives.deadline;
        let ranks = Ranks::new(&*world.collective, deadline);
        let doctor = Doctor { options, world, peer_loss, ranks, start: Instant::now() };
        let examined = doctor.examine(&nccl_log)?;
        status = examined.report.status;
        if ranks.rank() == 0 {
            print(&examined.report)?;
        }
        // A launcher ends the other ranks when the first one exits with an error.
        ranks.collective.barrier(ranks.deadline())?;
        Ok(examined.is_closed)
    });
    nccl_log.finish(exit.as_ref().err());
    let code = if status == Status::Fail { ExitCode::Environment } else { ExitCode::Done };
    Ok(Exit { code, ..exit? })
}

/// Findings of one rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct RankFindings {
    place: Place,
    /// True if an RDMA port is up that the rank may use.
    has_rdma: bool,
    found: Vec<Found>,
}

/// Place of a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Place {
    host: String,
    node: usize,
    is_first_of_node: bool,
}

/// Finding of a check on a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Found {
    check: String,
    finding: Finding,
}

impl Found {
    fn new(check: &str, finding: Finding) -> Self {
        Self { check: check.to_owned(), finding }
    }
}

/// Result of the checks, on every rank.
struct Examined {
    report: DoctorReport,
    /// True if everything that was opened has been closed.
    is_closed: bool,
}

/// Checks of one rank, and the ranks that take part in them.
struct Doctor<'a> {
    options: &'a DoctorOptions,
    world: &'a World,
    peer_loss: &'a WatchedBackends,
    ranks: Ranks<'a>,
    start: Instant,
}

impl Doctor<'_> {
    /// Runs the checks of each rank alone, then those of all ranks together. Collective.
    fn examine(&self, nccl_log: &NcclLog) -> Outcome<Examined> {
        let xids = Xids::watch();
        let plan = self.options.has_workload.then(|| self.plan()).transpose()?;
        let context = self.context(plan.as_ref());
        let own = RankFindings {
            place: self.place(),
            has_rdma: launch::doctor::has_rdma(&context),
            found: self.by_itself(&context, plan.as_ref())?,
        };
        let mut all = self.ranks.gather(&own)?;
        let places: Vec<Place> = all.iter().map(|rank| rank.place.clone()).collect();
        let on_cuda = self.options.config.is_on_cuda();
        let mut together = alike::compare(self.world, self.ranks, on_cuda)?;
        together.push(clock::compare(self.ranks, &places)?);
        together.push(links::measure(self.world, self.ranks, &places, self.options.links)?);
        let has_rdma = all.iter().map(|rank| rank.has_rdma).collect();
        let Self { world, peer_loss, ranks, .. } = *self;
        let network = transports::Network { world, peer_loss, ranks, has_rdma };
        let connected = network.probe(&self.options.config, nccl_log)?;
        together.extend(connected.found);
        // Last, so that errors during the checks count.
        let xid = Found::new(XID.name, xids.finding(&context.host_root));
        for (rank, xid) in all.iter_mut().zip(self.ranks.gather(&xid)?) {
            rank.found.push(xid);
        }
        let required = &self.options.required;
        let report = DoctorReport::new(&all, together, required, self.start.elapsed());
        Ok(Examined { report, is_closed: connected.is_closed })
    }

    fn place(&self) -> Place {
        let placement = &self.world.placement;
        Place {
            host: placement.host.clone(),
            node: placement.node,
            is_first_of_node: placement.local_rank == 0,
        }
    }

    /// Runs the checks of this rank that do not need the other ranks.
    fn by_itself(&self, context: &Context, plan: Option<&RankPlan>) -> Outcome<Vec<Found>> {
        let tiers = self.tiers()?;
        let checkpoint_bytes = plan.map(|plan| plan.checkpoint_bytes);
        let of_tiers: Vec<TierCheck> =
            TierCheck::all(&tiers, checkpoint_bytes, self.world.placement.node);
        let on_device = plan.and_then(|plan| Some(plan.device.as_ref()?.total_bytes));
        let gpu_memory = GpuMemory { needed_bytes: on_device };
        let gpus: [&dyn Check; 5] = [&Gpus, &Ecc, &GpuClocks, &gpu_memory, &GpuPcie];
        let of_tiers = of_tiers.iter().map(|check| check as &dyn Check);
        let is_first = self.world.placement.local_rank == 0;
        let runs = |check: &&dyn Check| match check.desc().scope {
            Scope::Node => is_first,
            Scope::Rank | Scope::World => true,
        };
        let checks = HOST_CHECKS.into_iter().chain(gpus).chain(of_tiers).filter(runs);
        Ok(checks.map(|check| Found::new(check.desc().name, check.run(context))).collect())
    }

    fn context(&self, plan: Option<&RankPlan>) -> Context {
        let config = &self.options.config;
        let host_root = config.settings.telemetry.host_root.clone();
        let context = Context::of_rank(host_root, self.world, config.is_on_cuda());
        let of_node = |plan: &RankPlan| plan.total_bytes * context.local_world as u64;
        Context { memory_bytes: plan.map(of_node), ..context }
    }

    /// Plans the memory of each rank for this workload.
    fn plan(&self) -> Outcome<RankPlan> {
        let placement = &self.world.placement;
        let shape = JobShape {
            world: placement.world,
            local: placement.local_world,
            threads: self.world.threads.threads,
            shares_memory: self.ranks.collective.shares_memory(),
        };
        let config = &self.options.config;
        let memory = config.is_on_cuda().then(|| device_bytes_of_rank(shape.local)).flatten();
        RankPlan::new(&with_chosen_recompute(config, shape, memory)?, shape, None)
    }

    /// Returns the tiers of the configuration and the environment, without a folder of a run in
    /// them; only a named run has a folder of its own. Collective.
    fn tiers(&self) -> Outcome<Vec<Planned>> {
        let variables = Variables::read().agreed(self.ranks)?;
        let folder = self.options.out.as_ref().map(|out| out.join("checkpoints"));
        let is_named = folder.is_some();
        let config = &self.options.config.settings.checkpoint;
        let has_shared = config.shared.path.is_some() || variables.has_shared();
        let mut tiers = planned(config, variables, &folder.unwrap_or_default(), "");
        tiers.retain(|tier| tier.name != "shared" || has_shared || is_named);
        for tier in &mut tiers {
            tier.address.truncate(tier.address.trim_end_matches('/').len().max(1));
        }
        Ok(tiers)
    }
}
