//! Bootstrap: turns a process into a rank that knows its world.

mod detect;
mod group;
mod options;
mod world;

use collectives::Single;

use crate::error::Error;
use crate::expected::{self, Expected};
use crate::launcher::Launcher;
use record::machine::host_name;

pub use detect::detect_launcher;
pub use group::Group;
pub use options::{Backend, Options};
pub use world::World;

/// Opens the backend and waits for the other ranks. Call it on the main thread, before any thread
/// is bound to cores.
///
/// # Errors
/// When the environment, the binary and the backend do not fit each other, when not all ranks
/// arrive before the timeout, or when they are not the world that a supervisor expects.
pub fn open(options: &Options) -> Result<World, Error> {
    let variable = |name: &str| std::env::var(name).ok();
    let launcher = detect_launcher(variable)?;
    if launcher.is_some() {
        expected::refuse_on_operator_launcher(variable, &host_name())?;
    }
    let expected = Expected::read(variable)?;
    let collective = match choose(options.backend, launcher.as_ref())? {
        Chosen::Single => Single::new().into(),
        Chosen::Mpi => open_mpi(launcher.as_ref(), options)?,
    };
    if let Some(launcher) = &launcher {
        check_launcher(launcher, collective.rank(), collective.world())?;
    }
    let world = World::rendezvous_after(launcher, collective, options)?;
    if let Some(expected) = expected {
        expected.check(world.placement.world, world.placement.nodes)?;
    }
    Ok(world)
}

#[derive(Debug, PartialEq)]
enum Chosen {
    Single,
    Mpi,
}

fn choose(backend: Backend, launcher: Option<&Launcher>) -> Result<Chosen, Error> {
    match (backend, launcher) {
        // NCCL needs a host backend for the rendezvous of ranks.
        (Backend::Auto | Backend::Nccl | Backend::Single, None) => Ok(Chosen::Single),
        (Backend::Single, Some(launcher)) => match launcher.world {
            Some(1) => Ok(Chosen::Single),
            _ => Err(Error::SingleBackendUnderLauncher { launcher: *launcher }),
        },
        (Backend::Auto | Backend::Nccl | Backend::Mpi, _) => Ok(Chosen::Mpi),
    }
}

/// Detects a launcher of another MPI than the binary's, which starts R worlds of one rank each.
fn check_launcher(launcher: &Launcher, rank: usize, world: usize) -> Result<(), Error> {
    let launcher_world = launcher.world.unwrap_or(world);
    if launcher.rank == rank && launcher_world == world {
        return Ok(());
    }
    Err(Error::WorldMismatch {
        kind: launcher.kind,
        launcher_rank: launcher.rank,
        launcher_world,
        rank,
        world,
    })
}

/// Shortest time that ranks have to join: launchers and loaders start them seconds apart, however
/// short the deadline of an operation between them is.
#[cfg(feature = "mpi")]
const START: std::time::Duration = std::time::Duration::from_secs(10);

/// Opens the MPI backend, if this binary has it.
#[cfg(feature = "mpi")]
fn open_mpi(_: Option<&Launcher>, options: &Options) -> Result<Group, Error> {
    let mpi_options = collectives::MpiOptions {
        open_timeout: options.timeout.max(START),
        timeout: options.timeout,
        close_timeout: options.close_timeout,
        ..collectives::MpiOptions::default()
    };
    let mpi = collectives::Mpi::open(mpi_options).map_err(|source| Error::Open { source })?;
    Ok(Group::mpi(mpi, options.close_timeout))
}

#[cfg(not(feature = "mpi"))]
fn open_mpi(launcher: Option<&Launcher>, _: &Options) -> Result<Group, Error> {
    match launcher {
        Some(Launcher { world: Some(1), .. }) => Ok(Single::new().into()),
        launcher => Err(Error::WithoutMpi { launcher: launcher.copied() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::LauncherKind;

    fn launcher(rank: usize, world: Option<usize>) -> Launcher {
        Launcher { kind: LauncherKind::OpenMpi, rank, world }
    }

    #[test]
    fn a_launcher_means_mpi_and_none_means_single() {
        let two = launcher(1, Some(2));
        let mpi = |backend, launcher| choose(backend, launcher).expect("they fit") == Chosen::Mpi;
        assert!(mpi(Backend::Auto, Some(&two)));
        assert!(mpi(Backend::Mpi, Some(&two)) && mpi(Backend::Mpi, None));
        assert!(mpi(Backend::Nccl, Some(&two)) && !mpi(Backend::Nccl, None));
        assert!(!mpi(Backend::Auto, None) && !mpi(Backend::Single, None));
        assert!(!mpi(Backend::Single, Some(&launcher(0, Some(1)))));
        for world in [Some(2), None] {
            let error = choose(Backend::Single, Some(&launcher(1, world))).expect_err("no fit");
            let Error::SingleBackendUnderLauncher { launcher } = error else { panic!("{error}") };
            assert_eq!(launcher.rank, 1);
        }
    }

    #[test]
    fn a_launcher_of_another_mpi_is_detected() {
        check_launcher(&launcher(1, Some(2)), 1, 2).unwrap();
        check_launcher(&launcher(1, None), 1, 2).unwrap();
        for (launcher, rank, world) in [
            (launcher(1, Some(2)), 0, 1),
            (launcher(0, Some(2)), 0, 1),
            (launcher(0, Some(2)), 1, 2),
            (launcher(1, None), 0, 1),
        ] {
            let error = check_launcher(&launcher, rank, world).expect_err("they differ");
            assert!(matches!(error, Error::WorldMismatch { .. }), "{error}");
        }
    }

    #[cfg(not(feature = "mpi"))]
    #[test]
    fn a_binary_without_mpi_refuses_several_ranks_and_runs_one() {
        let timeout = std::time::Duration::from_secs(20);
        let options =
            Options { backend: Backend::Auto, timeout, close_timeout: timeout, threads: None };
        let two = launcher(1, Some(2));
        let error = open_mpi(Some(&two), &options).expect_err("no MPI").to_string();
        assert!(error.contains("rank 1 of 2") && error.contains("feature `mpi`"), "{error}");
        assert!(open_mpi(None, &options).is_err());
        assert_eq!(open_mpi(Some(&launcher(0, Some(1))), &options).unwrap().world(), 1);
    }
}
