//! Detection of the launcher that started this process, from environment variables alone.
//!
//! Nothing here calls MPI: `MPI_Init` without a launcher can hang or print, and a workstation may
//! have no working MPI at all. Variable names: Open MPI's `mpirun(1)`, section "Environment
//! Variables"; the Hydra of MPICH and Intel MPI (`PMI_*`); the PMIx standard (`PMIX_RANK`);
//! `srun(1)`, section "OUTPUT ENVIRONMENT VARIABLES".

use crate::error::Error;
use crate::launcher::{Launcher, LauncherKind};

/// The variables of one launcher.
struct Variables {
    kind: LauncherKind,
    rank: &'static str,
    world: Option<&'static str>,
    /// Variables each of which means that this launcher started the process.
    evidence: &'static [&'static str],
}

/// Launchers in order of precedence: Open MPI under Slurm also has the variables of Slurm and PMIx.
const LAUNCHERS: [Variables; 5] = [
    Variables {
        kind: LauncherKind::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        world: Some("OMPI_COMM_WORLD_SIZE"),
        evidence: &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
    },
    Variables {
        kind: LauncherKind::IntelMpi,
        rank: "PMI_RANK",
        world: Some("PMI_SIZE"),
        // Seen with Intel MPI 2021.18; I_MPI_ROOT only names the installation.
        evidence: &["I_MPI_HYDRA_UUID"],
    },
    Variables {
        kind: LauncherKind::Hydra,
        rank: "PMI_RANK",
        world: Some("PMI_SIZE"),
        evidence: &["PMI_RANK", "PMI_SIZE"],
    },
    Variables {
        kind: LauncherKind::Slurm,
        rank: "SLURM_PROCID",
        world: Some("SLURM_STEP_NUM_TASKS"),
        // A batch script, which is a single process, has SLURM_PROCID and SLURM_NTASKS as well.
        evidence: &["SLURM_STEP_NUM_TASKS"],
    },
    Variables {
        kind: LauncherKind::Pmix,
        rank: "PMIX_RANK",
        world: None,
        evidence: &["PMIX_RANK"],
    },
];

/// Detects the launcher that started this process; `None` if the process was started alone.
///
/// `variable` looks up an environment variable. A Slurm step of one task counts as alone: the
/// shell of an interactive allocation is such a step.
///
/// # Errors
/// [`Error::Variable`] when a launcher's variables are incomplete or contradict each other.
pub fn detect_launcher(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Launcher>, Error> {
    let is_evident =
        |names: &&Variables| names.evidence.iter().any(|name| variable(name).is_some());
    let Some(names) = LAUNCHERS.iter().find(is_evident) else {
        return Ok(None);
    };
    let world = match names.world {
        Some(name) => Some(number(&variable, name, 1..usize::MAX)?),
        None => None,
    };
    if names.kind == LauncherKind::Slurm && world == Some(1) {
        return Ok(None);
    }
    let rank = number(&variable, names.rank, 0..world.unwrap_or(usize::MAX))?;
    Ok(Some(Launcher { kind: names.kind, rank, world }))
}

/// Parses a required variable as a number within `range`.
fn number(
    variable: impl Fn(&str) -> Option<String>,
    name: &'static str,
    range: std::ops::Range<usize>,
) -> Result<usize, Error> {
    let found = variable(name).unwrap_or_default();
    match found.trim().parse() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => {
            let expected = if range.end == usize::MAX {
                format!("a number of at least {}", range.start)
            } else {
                format!("a number from {} to {}", range.start, range.end - 1)
            };
            Err(Error::Variable { variable: name, expected, found })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect_in(pairs: &[(&str, &str)]) -> Result<Option<Launcher>, Error> {
        detect_launcher(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, v)| (*v).to_owned())
        })
    }

    fn found(pairs: &[(&str, &str)]) -> Launcher {
        detect_in(pairs).unwrap().expect("a launcher")
    }

    #[test]
    fn a_plain_environment_has_no_launcher() {
        assert_eq!(detect_in(&[("PATH", "/bin"), ("SLURM_NTASKS", "8")]).unwrap(), None);
    }

    #[test]
    fn open_mpi_wins_over_the_slurm_and_pmix_around_it() {
        let launcher = found(&[
            ("PMIX_RANK", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_PROCID", "0"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "malformed, and not read"),
        ]);
        let expected = Launcher { kind: LauncherKind::OpenMpi, rank: 3, world: Some(4) };
        assert_eq!(launcher, expected);
    }

    #[test]
    fn hydra_speaks_pmi() {
        let launcher = found(&[("PMI_RANK", "2"), ("PMI_SIZE", "3")]);
        assert_eq!(launcher.kind, LauncherKind::Hydra);
        assert_eq!((launcher.rank, launcher.world), (2, Some(3)));
    }

    #[test]
    fn intel_mpi_is_told_from_mpich() {
        let ranks = [("PMI_RANK", "2"), ("PMI_SIZE", "3"), ("I_MPI_ROOT", "installed")];
        assert_eq!(found(&ranks).kind, LauncherKind::Hydra);
        let intel = [ranks[0], ranks[1], ("I_MPI_HYDRA_UUID", "2b690000-12f4")];
        let expected = Launcher { kind: LauncherKind::IntelMpi, rank: 2, world: Some(3) };
        assert_eq!(found(&intel), expected);
    }

    #[test]
    fn slurm_steps_count_and_batch_scripts_do_not() {
        let step = [("SLURM_PROCID", "5"), ("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_NTASKS", "16")];
        let launcher = found(&step);
        assert_eq!((launcher.rank, launcher.world), (5, Some(8)));
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "16")];
        assert_eq!(detect_in(&batch).unwrap(), None);
        let interactive = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        assert_eq!(detect_in(&interactive).unwrap(), None);
    }

    #[test]
    fn pmix_alone_knows_no_world() {
        let launcher = found(&[("PMIX_RANK", "7")]);
        assert_eq!((launcher.kind, launcher.rank), (LauncherKind::Pmix, 7));
        assert_eq!(launcher.world, None);
    }

    #[test]
    fn incomplete_and_contradictory_variables_are_errors_that_name_them() {
        let cases: [(&[(&str, &str)], &str); 7] = [
            (&[("OMPI_COMM_WORLD_RANK", "0")], "OMPI_COMM_WORLD_SIZE"),
            (&[("OMPI_COMM_WORLD_SIZE", "2")], "OMPI_COMM_WORLD_RANK"),
            (&[("PMI_SIZE", "2")], "PMI_RANK"),
            (&[("PMI_RANK", "3"), ("PMI_SIZE", "3")], "PMI_RANK"),
            (&[("PMI_RANK", "-1"), ("PMI_SIZE", "3")], "PMI_RANK"),
            (&[("PMI_RANK", "0"), ("PMI_SIZE", "0")], "PMI_SIZE"),
            (&[("SLURM_STEP_NUM_TASKS", "4")], "SLURM_PROCID"),
        ];
        for (pairs, name) in cases {
            let error = detect_in(pairs).expect_err("must not be accepted").to_string();
            assert!(error.contains(name), "{error} does not name {name}");
        }
    }
}
