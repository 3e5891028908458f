//! From a bare process to a rank that knows its world.

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use collectives::Single;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::binding;
use crate::environment::{self, Launcher};
use crate::group::Group;
use crate::threads::{Resources, ThreadPlan};
use crate::topology::{Placement, Presence, Share};

/// How ranks are to talk: the key `collectives.backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// MPI under a launcher, single without one.
    #[default]
    Auto,
    /// One rank; MPI is never initialised.
    Single,
    /// MPI, also without a launcher.
    Mpi,
}

/// What to open.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How ranks are to talk.
    pub backend: Backend,
    /// Longest time that ranks may take to meet.
    pub deadline: Duration,
    /// Longest wait at the end for a rank that still writes what the run leaves.
    pub closing: Duration,
    /// Compute threads of this rank; divided from the cores when `None`.
    pub threads: Option<usize>,
}

/// A rank that has met the others.
#[derive(Debug)]
pub struct World {
    /// How to talk to the other ranks.
    pub collective: Group,
    /// Where this rank is.
    pub placement: Placement,
    /// Host of every rank.
    pub hosts: Vec<String>,
    /// Compute threads of this rank, and their cores.
    pub threads: ThreadPlan,
    /// Logical processors that the launcher may run on and no rank of the machine is bound to,
    /// without siblings of used ones and what the quota has no time for; 0 without a launcher, and
    /// when enough are left for the threads that were asked for.
    pub unused_cores: usize,
}

/// Opens the backend and lets the ranks meet. Call it on the main thread before anything is bound.
///
/// # Errors
/// When the environment, the binary and the backend do not fit each other, or when the ranks do not
/// meet before the deadline.
pub fn open(options: &Options) -> Result<World, Error> {
    let launcher = environment::detect(|name| std::env::var(name).ok())?;
    let collective = match choose(options.backend, launcher.as_ref())? {
        Chosen::Single => Single::new().into(),
        Chosen::Mpi => open_mpi(launcher.as_ref(), options)?,
    };
    if let Some(launcher) = &launcher {
        agree(launcher, collective.rank(), collective.world())?;
    }
    World::meet_after(launcher, collective, options)
}

#[derive(Debug, PartialEq)]
enum Chosen {
    Single,
    Mpi,
}

fn choose(backend: Backend, launcher: Option<&Launcher>) -> Result<Chosen, Error> {
    match (backend, launcher) {
        (Backend::Auto | Backend::Single, None) => Ok(Chosen::Single),
        (Backend::Single, Some(launcher)) => match launcher.world {
            Some(1) => Ok(Chosen::Single),
            world => Err(Error::SingleOfMany {
                kind: launcher.kind,
                rank: launcher.rank,
                world: world.map_or("an unknown number".to_owned(), |world| world.to_string()),
            }),
        },
        (Backend::Auto | Backend::Mpi, _) => Ok(Chosen::Mpi),
    }
}

/// A launcher of another MPI than the binary's starts R worlds of one rank each.
fn agree(launcher: &Launcher, rank: usize, world: usize) -> Result<(), Error> {
    let launcher_world = launcher.world.unwrap_or(world);
    if (launcher.rank, launcher_world) == (rank, world) {
        return Ok(());
    }
    let (kind, launcher_rank) = (launcher.kind, launcher.rank);
    Err(Error::WorldMismatch { kind, launcher_rank, launcher_world, rank, world })
}

/// The MPI backend, where this binary has it.
#[cfg(feature = "mpi")]
fn open_mpi(_: Option<&Launcher>, options: &Options) -> Result<Group, Error> {
    let closing = options.closing;
    let options = collectives::MpiOptions {
        open_timeout: options.deadline,
        timeout: options.deadline,
        close_timeout: closing,
        ..collectives::MpiOptions::default()
    };
    let mpi = collectives::Mpi::open(options).map_err(|source| Error::Open { source })?;
    Ok(Group::mpi(mpi, closing))
}

#[cfg(not(feature = "mpi"))]
fn open_mpi(launcher: Option<&Launcher>, _: &Options) -> Result<Group, Error> {
    match launcher {
        Some(Launcher { world: Some(1), .. }) => Ok(Single::new().into()),
        launcher => Err(Error::WithoutMpi { launcher: launcher.copied() }),
    }
}

impl World {
    /// Ranks tell each other where they are. For a backend that is open already.
    ///
    /// # Errors
    /// [`Error::Meet`] when the ranks do not meet before the deadline.
    pub fn meet(collective: impl Into<Group>, options: &Options) -> Result<Self, Error> {
        Self::meet_after(None, collective.into(), options)
    }

    fn meet_after(
        launcher: Option<Launcher>,
        collective: Group,
        options: &Options,
    ) -> Result<Self, Error> {
        let (rank, world) = (collective.rank(), collective.world());
        // After an error the network may still write here: it is then never freed.
        let mut bytes = ManuallyDrop::new(vec![0_u8; world * Presence::BYTES]);
        Presence::of_this_process()
            .encode(&mut bytes[rank * Presence::BYTES..(rank + 1) * Presence::BYTES]);
        collective
            .all_gather(&mut bytes, Instant::now() + options.deadline)
            .map_err(|source| Error::Meet { rank, source })?;
        let bytes = ManuallyDrop::into_inner(bytes);
        let presences: Vec<_> = bytes.chunks(Presence::BYTES).map(Presence::decode).collect();
        let placement = Placement::new(rank, &presences);
        let share = Share::new(rank, &presences);
        let resources = Resources::of_this_process(share, placement.local_world);
        let may_miss = options.threads.is_none_or(|threads| threads > presences[rank].cores.len());
        let is_bound = launcher.is_some() && may_miss;
        let unused_cores = if is_bound { binding::unused_cores(rank, &presences) } else { 0 };
        let hosts = presences.into_iter().map(|presence| presence.host).collect();
        let threads = ThreadPlan::new(&resources, options.threads);
        Ok(Self { collective, placement, hosts, threads, unused_cores })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LauncherKind;
    use crate::threads::allowed_cores;

    const OPTIONS: Options = Options {
        backend: Backend::Auto,
        deadline: Duration::from_secs(20),
        closing: Duration::from_secs(20),
        threads: None,
    };

    fn launcher(rank: usize, world: Option<usize>) -> Launcher {
        let kind = LauncherKind::OpenMpi;
        Launcher { kind, rank, world }
    }

    #[test]
    fn a_launcher_means_mpi_and_none_means_single() {
        let two = launcher(1, Some(2));
        let mpi = |backend, launcher| choose(backend, launcher).expect("they fit") == Chosen::Mpi;
        assert!(mpi(Backend::Auto, Some(&two)));
        assert!(mpi(Backend::Mpi, Some(&two)) && mpi(Backend::Mpi, None));
        assert!(!mpi(Backend::Auto, None) && !mpi(Backend::Single, None));
        assert!(!mpi(Backend::Single, Some(&launcher(0, Some(1)))));
        for world in [Some(2), None] {
            let error = choose(Backend::Single, Some(&launcher(1, world))).expect_err("no fit");
            assert!(matches!(error, Error::SingleOfMany { rank: 1, .. }), "{error}");
        }
    }

    #[test]
    fn a_launcher_of_another_mpi_is_noticed() {
        agree(&launcher(1, Some(2)), 1, 2).unwrap();
        agree(&launcher(1, None), 1, 2).unwrap();
        for (launcher, rank, world) in [
            (launcher(1, Some(2)), 0, 1),
            (launcher(0, Some(2)), 0, 1),
            (launcher(0, Some(2)), 1, 2),
            (launcher(1, None), 0, 1),
        ] {
            let error = agree(&launcher, rank, world).expect_err("they differ");
            assert!(matches!(error, Error::WorldMismatch { .. }), "{error}");
        }
    }

    #[test]
    fn one_rank_is_a_world() {
        let world = World::meet(Single::new(), &OPTIONS).unwrap();
        assert_eq!((world.placement.rank, world.placement.world), (0, 1));
        assert_eq!((world.placement.local_world, world.placement.nodes), (1, 1));
        assert_eq!(world.hosts, [world.placement.host.as_str()]);
        assert!(world.threads.threads >= 1);
    }

    #[test]
    fn ranks_of_one_process_share_its_cores() {
        let ranks: Vec<_> = collectives::Threads::group(3)
            .into_iter()
            .map(|rank| std::thread::spawn(|| World::meet(rank, &OPTIONS)))
            .collect();
        let worlds: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect();
        for (rank, world) in worlds.iter().enumerate() {
            let placement = &world.placement;
            assert_eq!((placement.rank, placement.local_rank), (rank, rank));
            assert_eq!((placement.world, placement.local_world, placement.nodes), (3, 3, 1));
            assert_eq!(world.hosts.len(), 3);
        }
        let expected = ThreadPlan::of_first(3, None);
        assert_eq!(worlds[0].threads, expected, "a plan beforehand says what comes");
        assert!(worlds.iter().all(|world| world.threads.threads <= expected.threads));
        let threads: usize = worlds.iter().map(|world| world.threads.threads).sum();
        assert!(threads <= allowed_cores().len().max(3), "{threads} threads");
    }

    #[cfg(not(feature = "mpi"))]
    #[test]
    fn a_binary_without_mpi_refuses_several_ranks_and_runs_one() {
        let two = launcher(1, Some(2));
        let error = open_mpi(Some(&two), &OPTIONS).expect_err("no MPI").to_string();
        assert!(error.contains("rank 1 of 2") && error.contains("feature `mpi`"), "{error}");
        assert!(open_mpi(None, &OPTIONS).is_err());
        assert_eq!(open_mpi(Some(&launcher(0, Some(1))), &OPTIONS).unwrap().world(), 1);
    }
}
