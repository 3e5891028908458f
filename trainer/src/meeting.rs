//! What ranks settle before they train: that they run the same, in which folder, and who they are.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use launch::bootstrap::World;

use crate::config::Engine;
use crate::failure::{ExitCode, Failure, Outcome};
use crate::folder::{Folder, Prepared};
use crate::persist::gather_bytes;
use crate::phase::PhaseTimes;
use crate::record::RankRecord;
use crate::run::RunOptions;

/// Rank 0's folder, ready for an attempt, or complete already.
pub(crate) struct Agreed {
    pub(crate) folder: Folder,
    pub(crate) prepared: Prepared,
}

/// One payload of each rank, before the deadline of the configuration.
fn gather(options: &RunOptions, world: &World, payload: &[u8]) -> Outcome<Vec<Vec<u8>>> {
    gather_before(options.config.settings.collectives.deadline_s, world, payload)
}

/// Seconds for what waits for storage on another rank.
fn patience_s(options: &RunOptions) -> f64 {
    let settings = &options.config.settings;
    settings.collectives.deadline_s.max(settings.checkpoint.deadline_s)
}

fn gather_before(deadline_s: f64, world: &World, payload: &[u8]) -> Outcome<Vec<Vec<u8>>> {
    let deadline = Instant::now() + Duration::from_secs_f64(deadline_s);
    Ok(gather_bytes(&*world.collective, payload, deadline)?)
}

/// Ranks that would compute or stop differently are refused, and named.
pub(crate) fn agree_on_configuration(
    options: &RunOptions,
    world: &World,
    workload_id: &str,
) -> Outcome<()> {
    let ends = (options.steps, options.eval_every, options.target_loss, options.fresh);
    let told = format!("{workload_id} {ends:?}\n{}", options.config.to_toml());
    match unlike_rank_0(options, world, &blake3::hash(told.as_bytes()))? {
        None => Ok(()),
        Some(rank) => Err(Failure::usage(format!(
            "rank {rank} has another configuration than rank 0\n  \
             hint: start every rank with the same flags, files and version"
        ))
        .caused_by(rank)),
    }
}

/// Ranks that would start with other weights are refused, and named.
pub(crate) fn agree_on_weights(
    options: &RunOptions,
    world: &World,
    digest: &blake3::Hash,
) -> Outcome<()> {
    match unlike_rank_0(options, world, digest)? {
        None => Ok(()),
        Some(rank) => Err(Failure::usage(format!(
            "--init-from: rank {rank} found other weights than rank 0\n  \
             hint: name a folder that is the same on all hosts"
        ))
        .caused_by(rank)),
    }
}

/// The first rank whose digest is not that of rank 0.
fn unlike_rank_0(
    options: &RunOptions,
    world: &World,
    digest: &blake3::Hash,
) -> Outcome<Option<usize>> {
    // Files are read before: slow storage is no lost peer.
    let digests = gather_before(patience_s(options), world, digest.as_bytes())?;
    Ok(digests.iter().position(|digest| *digest != digests[0]))
}

/// Rank 0 prepares the folder; everybody learns its name and the number of the attempt, or that it
/// was refused.
pub(crate) fn agree_on_folder(
    options: &RunOptions,
    world: &World,
    workload_id: &str,
    last_step: u64,
) -> Outcome<Agreed> {
    let own = (world.collective.rank() == 0).then(|| -> Outcome<Agreed> {
        let mut folder = match &options.out {
            Some(root) => Folder::new(root),
            None => Folder::create_new(&options.config.name)?,
        };
        let prepared = folder.prepare(options, workload_id, last_step)?;
        Ok(Agreed { folder, prepared })
    });
    let internal = |error| Failure::new(ExitCode::Internal, anyhow::Error::from(error));
    let said = own.as_ref().map(|own| match own {
        Ok(Agreed { folder, prepared }) => Ok((folder.root(), prepared)),
        Err(failure) => Err(failure.code),
    });
    let payload = serde_json::to_vec(&said).map_err(internal)?;
    match (own, gather(options, world, &payload)) {
        // Said even where a peer was lost meanwhile.
        (Some(Err(refusal)), _) => Err(refusal.caused_by(0)),
        (_, Err(failure)) => Err(failure),
        (Some(prepared), Ok(_)) => prepared,
        (None, Ok(mut all)) => hear(&all.swap_remove(0)),
    }
}

/// What rank 0 said to the others: the folder, or the exit code with which it refused.
fn hear(said: &[u8]) -> Outcome<Agreed> {
    let said: Option<Result<(PathBuf, Prepared), ExitCode>> =
        serde_json::from_slice(said).map_err(|error| Failure::new(ExitCode::Internal, error))?;
    let (root, prepared) = said.expect("rank 0 says something").map_err(|code| {
        let told = "rank 0 refused the folder of the run; see its message";
        Failure::new(code, anyhow::anyhow!(told)).caused_by(0)
    })?;
    Ok(Agreed { folder: Folder::new(root), prepared })
}

/// Everybody's place and, at the end, times. The end has a checkpoint's patience: rank 0 may still
/// be removing old ones.
pub(crate) fn gather_ranks(
    options: &RunOptions,
    world: &World,
    planned_bytes: u64,
    phases_ns: Option<PhaseTimes>,
) -> Outcome<Vec<RankRecord>> {
    let World { placement, threads, .. } = world;
    let config = &options.config;
    let compute = config.workload.precision.compute;
    let is_ours = config.settings.run.engine == Engine::Fused;
    let own = RankRecord {
        rank: placement.rank,
        host: placement.host.clone(),
        pid: std::process::id(),
        cores: threads.exclusive.then(|| threads.cores.clone()),
        threads: threads.threads,
        unused_cores: world.unused_cores,
        matmul_kernel: is_ours.then(|| models::fused::matmul_kernel(compute).to_owned()),
        planned_bytes: Some(planned_bytes),
        phases_ns,
    };
    let internal = |error| Failure::new(ExitCode::Internal, anyhow::Error::from(error));
    let payload = serde_json::to_vec(&own).map_err(internal)?;
    let usual = config.settings.collectives.deadline_s;
    let deadline_s = if phases_ns.is_some() { patience_s(options) } else { usual };
    let all = gather_before(deadline_s, world, &payload)?;
    all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(internal)).collect()
}

#[cfg(test)]
mod tests {
    use collectives::Threads;
    use launch::bootstrap::{Backend, Options};

    use super::*;
    use crate::config::Config;
    use crate::telemetry::LogFormat;

    /// Two ranks that have met.
    fn worlds() -> [World; 2] {
        let patience = Duration::from_secs(20);
        let met = Options {
            backend: Backend::Auto,
            deadline: patience,
            closing: patience,
            threads: Some(1),
        };
        let meet = |rank: Threads| std::thread::spawn(move || World::meet(rank, &met).unwrap());
        let ranks: Vec<_> = Threads::group(2).into_iter().map(meet).collect();
        let worlds: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        worlds.try_into().expect("two")
    }

    fn options(out: PathBuf, fresh: bool, deadline: &str) -> RunOptions {
        let deadline = format!("collectives.deadline_s={deadline}");
        RunOptions {
            config: Config::load("smoke", &[deadline]).unwrap(),
            out: Some(out),
            fresh,
            steps: None,
            eval_every: None,
            target_loss: None,
            log_format: LogFormat::Text,
            profile_step: None,
            injections: Vec::new(),
        }
    }

    /// What rank 0 found is the reason, and not that a peer died while it was looking.
    #[test]
    fn a_refusal_is_the_reason_though_a_peer_dies_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.toml"), "").unwrap();
        let refused = options(folder.path().to_owned(), true, "0.3");
        let fine = options(folder.path().join("new"), false, "0.3");
        for (options, code, rank) in [(refused, ExitCode::Usage, 0), (fine, ExitCode::PeerLost, 1)]
        {
            let [first, peer] = worlds();
            peer.collective.abandon("its power failed");
            let failure = agree_on_folder(&options, &first, "0123456789ab", 1).err().unwrap();
            assert_eq!((failure.code, failure.rank), (code, Some(rank)), "{failure}");
            assert_eq!(failure.to_string().contains("--fresh"), code == ExitCode::Usage);
        }
    }

    /// The others learn with which exit code, and by whom.
    #[test]
    fn a_refusal_is_everybody_s() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.toml"), "").unwrap();
        let options = options(folder.path().to_owned(), true, "10");
        let agree = |world: World| agree_on_folder(&options, &world, "0123456789ab", 1).err();
        std::thread::scope(|scope| {
            let ranks = worlds().map(|world| scope.spawn(|| agree(world)));
            for failure in ranks.map(|rank| rank.join().unwrap().unwrap()) {
                assert_eq!((failure.code, failure.rank), (ExitCode::Usage, Some(0)), "{failure}");
            }
        });
    }
}
