//! Agreement of the ranks before they train: on the configuration, the initial weights and the
//! folder.

use std::path::PathBuf;

use collectives::Collective;
use device::Device;
use device::cuda::{self, Cuda, DeviceProperties, Libraries, Versions};
use launch::bootstrap::World;
use launch::doctor::{Context, mpi_interface, nearest_port};
use launch::{NumaNode, Placement, ThreadPlan};
use record::machine::NodeIdentity;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::folder::{Folder, Prepared};
use super::options::RunOptions;
use super::process::gpu_ordinal;
use crate::config::Engine;
use crate::failure::{Failure, Outcome};
use crate::plan::{self, JobShape};
use crate::ranks::Ranks;
use record::ExitCode;
use record::phase::PhaseTimes;
use record::text::number_format::binary;
use record::{BucketRecord, NodeReport, NumaRecord, OwnTimes, RankRecord, WeightsDigest};

/// Folder of the run, as prepared by rank 0.
pub(super) struct PreparedFolder {
    pub(super) folder: Folder,
    pub(super) prepared: Prepared,
}

/// Returns all ranks, with the configured deadline of collectives.
fn ranks_of<'world>(options: &RunOptions, world: &'world World) -> Ranks<'world> {
    Ranks::new(&*world.collective, options.config.settings.collectives.deadline)
}

/// Returns all ranks, with the deadline of operations in which another rank may wait for storage.
pub(super) fn ranks_with_storage_timeout<'world>(
    options: &RunOptions,
    world: &'world World,
) -> Ranks<'world> {
    let ranks = ranks_of(options, world);
    ranks.with_timeout(ranks.timeout.max(options.config.settings.checkpoint.deadline))
}

/// Returns the options with `run.recompute` set, by the smallest memory of a rank's device where it
/// is not. Collective.
pub(super) fn with_chosen_recompute(options: &RunOptions, world: &World) -> Outcome<RunOptions> {
    let config = &options.config;
    let placement = &world.placement;
    let own = config.is_on_cuda().then(|| RankDevice::of(placement)).flatten();
    let of_ranks = ranks_with_storage_timeout(options, world).gather(&own)?;
    let least_bytes = of_ranks.iter().flatten().map(|device| device.bytes_of_rank(&of_ranks)).min();
    let shape = JobShape {
        world: placement.world,
        local: placement.local_world,
        threads: world.threads.threads,
        shares_memory: world.collective.shares_memory(),
    };
    let chosen = plan::with_chosen_recompute(config, shape, least_bytes)?;
    let level = chosen.recompute();
    if level > config.recompute() && placement.rank == 0 {
        let memory = binary(least_bytes.unwrap_or_default());
        tracing::info!("run.recompute = {level}: less would not fit into the {memory} of a GPU");
    }
    Ok(RunOptions { config: chosen, ..options.clone() })
}

/// Device of a rank, which several ranks may share.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RankDevice {
    host: String,
    pci_bus_id: String,
    memory_bytes: u64,
}

impl RankDevice {
    /// Finds the device of this rank; `None` where it cannot be opened, which the run reports then.
    fn of(placement: &Placement) -> Option<Self> {
        let devices = cuda::devices().ok()?;
        let device = &devices[gpu_ordinal(placement, devices.len())];
        Some(Self {
            host: placement.host.clone(),
            pci_bus_id: device.pci_bus_id.clone(),
            memory_bytes: device.memory_bytes,
        })
    }

    /// Returns the part of its memory of each rank that has this device.
    fn bytes_of_rank(&self, of_ranks: &[Option<Self>]) -> u64 {
        let sharing = of_ranks.iter().flatten().filter(|other| *other == self).count();
        self.memory_bytes / sharing as u64
    }
}

/// Fails if a rank would compute or stop differently than rank 0; the error names the first such
/// rank.
pub(super) fn agree_on_configuration(
    options: &RunOptions,
    world: &World,
    workload_id: &str,
) -> Outcome<()> {
    let stops = (options.steps, options.eval_every, options.target_loss, options.fresh);
    let text = format!("{workload_id} {stops:?}\n{}", options.config.to_toml());
    match first_that_differs(options, world, &blake3::hash(text.as_bytes()))? {
        None => Ok(()),
        Some(rank) => Err(Failure::usage(format!(
            "rank {rank} has a different configuration than rank 0\n  \
             hint: start every rank with the same flags, files and version"
        ))
        .caused_by(rank)),
    }
}

/// Weights that a rank has found in its folder of `--init-from`.
pub(super) struct FoundWeights {
    /// Digest of a sample of all tensors.
    pub(super) sample: blake3::Hash,
    /// Digest of all weights, if each rank has read all.
    pub(super) whole: Option<WeightsDigest>,
}

/// Fails if a rank would start with other weights than rank 0; the error names the first such rank.
pub(super) fn agree_on_weights(
    options: &RunOptions,
    world: &World,
    found: &FoundWeights,
) -> Outcome<()> {
    let whole = found.whole.map(WeightsDigest::to_bytes).unwrap_or_default();
    let digest = blake3::Hasher::new().update(found.sample.as_bytes()).update(&whole).finalize();
    match first_that_differs(options, world, &digest)? {
        None => Ok(()),
        Some(rank) => Err(Failure::usage(format!(
            "--init-from: rank {rank} has read different weights than rank 0\n  \
             hint: name a folder that has the same content on all hosts"
        ))
        .caused_by(rank)),
    }
}

/// Returns the first rank whose digest differs from that of rank 0.
fn first_that_differs(
    options: &RunOptions,
    world: &World,
    digest: &blake3::Hash,
) -> Outcome<Option<usize>> {
    // Ranks have read files before this: a rank with slow storage is not lost.
    let digests = ranks_with_storage_timeout(options, world).gather_bytes(digest.as_bytes())?;
    Ok(digests.iter().position(|digest| *digest != digests[0]))
}

/// Message of rank 0 about the folder.
#[derive(Debug, Serialize, Deserialize)]
enum FolderMessage {
    Prepared { root: PathBuf, prepared: Prepared },
    Failed(ExitCode),
}

/// Prepares the folder on rank 0, which sends its path and the number of the attempt to the other
/// ranks, or the exit code of its error.
pub(super) fn agree_on_folder(
    options: &RunOptions,
    world: &World,
    workload_id: &str,
    last_step: u64,
) -> Outcome<PreparedFolder> {
    let own = (world.collective.rank() == 0).then(|| -> Outcome<PreparedFolder> {
        let mut folder = match &options.out {
            Some(root) => Folder::new(root),
            None => Folder::create_new(&options.config.name)?,
        };
        let prepared = folder.prepare(options, workload_id, last_step)?;
        Ok(PreparedFolder { folder, prepared })
    });
    let message = own.as_ref().map(|own| match own {
        Ok(PreparedFolder { folder, prepared }) => {
            let root = folder.root().to_owned();
            FolderMessage::Prepared { root, prepared: prepared.clone() }
        }
        Err(failure) => FolderMessage::Failed(failure.code),
    });
    let message = serde_json::to_vec(&message).map_err(internal)?;
    // After an error of rank 0, no other rank has anything to wait for.
    let ranks = match &own {
        Some(Err(_)) => ranks_of(options, world),
        _ => ranks_with_storage_timeout(options, world),
    };
    match (own, ranks.gather_bytes(&message)) {
        // The cause counts, even if a peer was lost meanwhile.
        (Some(Err(failure)), _) => Err(failure.caused_by(0)),
        (_, Err(error)) => Err(error.into()),
        (Some(prepared), Ok(_)) => prepared,
        (None, Ok(mut messages)) => received_folder(&messages.swap_remove(0)),
    }
}

/// Decodes the message of rank 0: the folder, or the exit code of its error.
fn received_folder(message: &[u8]) -> Outcome<PreparedFolder> {
    let message: Option<FolderMessage> = serde_json::from_slice(message).map_err(internal)?;
    match message.expect("rank 0 sends a message") {
        FolderMessage::Prepared { root, prepared } => {
            Ok(PreparedFolder { folder: Folder::new(root), prepared })
        }
        FolderMessage::Failed(code) => {
            let text = "rank 0 could not use the folder of the run; see its error";
            Err(Failure::new(code, anyhow::anyhow!(text)).caused_by(0))
        }
    }
}

/// Waits until every rank has read and written what it must before the next operation between
/// ranks, which has only the deadline of collectives.
pub(super) fn storage_barrier(options: &RunOptions, world: &World) -> Outcome<()> {
    let ranks = ranks_with_storage_timeout(options, world);
    ranks.collective.barrier(ranks.deadline())?;
    Ok(())
}

/// Returns what rank 0 has read from storage or decided, on every rank. The `own` of other ranks is
/// ignored.
pub(super) fn broadcast_from_rank_0<T: Serialize + DeserializeOwned>(
    options: &RunOptions,
    world: &World,
    own: &T,
) -> Outcome<T> {
    let own = serde_json::to_vec(own).map_err(internal)?;
    let messages = ranks_with_storage_timeout(options, world).gather_bytes(&own)?;
    serde_json::from_slice(&messages[0]).map_err(internal)
}

/// Returns the number of ranks that compute on the same GPU as this one. Ordinals cannot show that:
/// each rank may see a GPU of its own as its first.
pub(super) fn ranks_sharing(options: &RunOptions, world: &World, device: &Cuda) -> Outcome<usize> {
    let DeviceProperties { pci_bus_id, .. } = device.properties();
    let own = format!("{} {pci_bus_id}", world.placement.host);
    let all = ranks_of(options, world).gather_bytes(own.as_bytes())?;
    Ok(all.iter().filter(|other| **other == own.as_bytes()).count())
}

/// Times of a rank in an attempt.
pub(super) struct RankTimes {
    pub(super) phases_ns: PhaseTimes,
    pub(super) buckets: Vec<BucketRecord>,
    pub(super) times: OwnTimes,
}

/// Gathers the record of every rank: its placement, and at the end its times.
pub(super) fn gather_ranks(
    options: &RunOptions,
    world: &World,
    device: &Device,
    planned_bytes: u64,
    measured: Option<RankTimes>,
) -> Outcome<Vec<RankRecord>> {
    let World { placement, threads, .. } = world;
    let config = &options.config;
    let compute = config.workload.precision.compute;
    let gpu = match device {
        Device::Host => None,
        Device::Cuda(device) => Some(device.properties().clone()),
    };
    let has_own_matmul = config.settings.run.engine == Engine::Fused && gpu.is_none();
    let own = RankRecord {
        rank: placement.rank,
        host: placement.host.clone(),
        node: launch::node_name(),
        mesh: None,
        pid: std::process::id(),
        cores: threads.is_bound().then(|| threads.cores.clone()),
        threads: threads.threads,
        unused_cores: world.unused_cores,
        matmul_kernel: has_own_matmul.then(|| models::fused::matmul_kernel(compute).to_owned()),
        nic: nic_of(options, world, gpu.as_ref()),
        numa: gpu.as_ref().and_then(|gpu| numa_of(gpu, threads)),
        device: gpu,
        planned_bytes,
        phases_ns: measured.as_ref().map(|measured| measured.phases_ns),
        times: measured.as_ref().map(|measured| measured.times.clone()),
        sniffed: None,
        straggler: None,
        gpu: None,
        buckets: measured.map_or(Vec::new(), |measured| measured.buckets),
    };
    // Ranks have opened the checkpoints at the start; at the end rank 0 may still be removing old
    // ones.
    let ranks = ranks_with_storage_timeout(options, world);
    ranks.gather(&own)
}

/// Gathers the report of each node from its first rank, on every rank.
pub(super) fn gather_nodes(
    options: &RunOptions,
    world: &World,
    device: &Device,
) -> Outcome<Vec<NodeReport>> {
    let placement = &world.placement;
    let own = (placement.local_rank == 0).then(|| NodeReport {
        host: placement.host.clone(),
        identity: identity_with_libraries(&*world.collective, matches!(device, Device::Cuda(_))),
    });
    let ranks = ranks_with_storage_timeout(options, world);
    Ok(ranks.gather(&own)?.into_iter().flatten().collect())
}

/// Returns the identity of this node, with the open libraries.
pub(crate) fn identity_with_libraries(collective: &dyn Collective, on_cuda: bool) -> NodeIdentity {
    let mut identity = launch::node_identity();
    identity.set("library.mpi", collective.library());
    if on_cuda {
        let Versions { cuda_driver, cublaslt, nccl, nvrtc, .. } =
            Libraries::of_process().versions();
        identity.set("library.cuda_driver", cuda_driver);
        identity.set("library.cublaslt", cublaslt);
        identity.set("library.nccl", nccl);
        identity.set("library.nvrtc", nvrtc);
    }
    identity
}

fn numa_of(gpu: &DeviceProperties, threads: &ThreadPlan) -> Option<NumaRecord> {
    let NumaNode { number, .. } = NumaNode::of_pci_device(&gpu.pci_bus_id)?;
    Some(NumaRecord { device_node: number, is_local: threads.numa_node == Some(number) })
}

/// Returns the network adapter of this rank's messages to other nodes, if known before any is sent.
fn nic_of(options: &RunOptions, world: &World, gpu: Option<&DeviceProperties>) -> Option<String> {
    let host_root = options.config.settings.telemetry.host_root.clone();
    let context = Context::of_rank(host_root, world, gpu.is_some());
    if world.placement.nodes == 1 {
        return None;
    }
    match gpu {
        Some(gpu) => nearest_port(&context, &gpu.pci_bus_id),
        None => mpi_interface(&context),
    }
}

fn internal(error: serde_json::Error) -> Failure {
    Failure::new(ExitCode::Internal, error)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use collectives::Threads;
    use launch::bootstrap::{Backend, Options};

    use super::*;
    use crate::config::Config;
    use telemetry::LogFormat;

    /// Returns two ranks after their rendezvous.
    fn worlds() -> [World; 2] {
        let timeout = Duration::from_secs(20);
        let options =
            Options { backend: Backend::Auto, timeout, close_timeout: timeout, threads: Some(1) };
        let rendezvous =
            |rank: Threads| std::thread::spawn(move || World::rendezvous(rank, &options).unwrap());
        let ranks: Vec<_> = Threads::group(2).into_iter().map(rendezvous).collect();
        let worlds: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        worlds.try_into().expect("two")
    }

    fn options(out: PathBuf, fresh: bool, storage_deadline: &str) -> RunOptions {
        let storage = format!("checkpoint.deadline={storage_deadline}");
        let collectives = "collectives.deadline=300ms".to_owned();
        RunOptions {
            keep_record: |_, _| Ok(()),
            config: Config::load("smoke", &[storage, collectives]).unwrap(),
            out: Some(out),
            fresh,
            steps: None,
            steady_steps: None,
            eval_every: None,
            target_loss: None,
            target_origin: "",
            log_format: LogFormat::Text,
            profile_step: None,
            trace_steps: None,
            injections: Vec::new(),
            refuse_complete: false,
        }
    }

    #[test]
    fn a_folder_error_is_the_cause_even_if_a_peer_is_lost_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.toml"), "").unwrap();
        let occupied = options(folder.path().to_owned(), true, "300ms");
        let usable = options(folder.path().join("new"), false, "300ms");
        for (options, code, rank) in
            [(occupied, ExitCode::Usage, 0), (usable, ExitCode::PeerLost, 1)]
        {
            let [first, peer] = worlds();
            peer.collective.abandon("a simulated failure");
            let failure = agree_on_folder(&options, &first, "0123456789ab", 1).err().unwrap();
            assert_eq!((failure.code, failure.rank), (code, Some(rank)), "{failure}");
            assert_eq!(failure.to_string().contains("--fresh"), code == ExitCode::Usage);
        }
    }

    #[test]
    fn a_folder_error_is_returned_on_every_rank() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.toml"), "").unwrap();
        let options = options(folder.path().to_owned(), true, "10s");
        let agree = |world: World| agree_on_folder(&options, &world, "0123456789ab", 1).err();
        std::thread::scope(|scope| {
            let ranks = worlds().map(|world| scope.spawn(|| agree(world)));
            for failure in ranks.map(|rank| rank.join().unwrap().unwrap()) {
                assert_eq!((failure.code, failure.rank), (ExitCode::Usage, Some(0)), "{failure}");
            }
        });
    }

    /// Delays rank 0 beyond the deadline of collectives, as slow storage does.
    #[test]
    fn a_start_waits_for_slow_storage_beyond_the_deadline_of_collectives() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path().join("run"), false, "20s");
        let starts: [fn(&RunOptions, &World) -> Outcome<()>; 3] = [
            |options, world| agree_on_folder(options, world, "0123456789ab", 1).map(drop),
            |options, world| gather_ranks(options, world, &Device::Host, 0, None).map(drop),
            storage_barrier,
        ];
        for start in starts {
            let start = |world: World| {
                if world.collective.rank() == 0 {
                    std::thread::sleep(Duration::from_secs(1));
                }
                start(&options, &world).unwrap();
            };
            std::thread::scope(|scope| {
                for world in worlds() {
                    scope.spawn(move || start(world));
                }
            });
        }
    }
}
