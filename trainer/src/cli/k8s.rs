//! `yardstick k8s`: jobs for Kubernetes.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::train::config_of;
use super::{note, print};
use crate::failure::{ExitCode, Failure, Outcome};
use crate::k8s::{self, Job};

/// Make jobs for Kubernetes. No access to a cluster is needed.
#[derive(Debug, Args)]
pub(super) struct K8s {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Render(Render),
}

/// Render a benchmark file as the objects of an MPIJob, for `kubectl apply -f`.
///
/// The same file gives the same bytes. What the cluster, the operator or `train` would refuse is
/// refused here.
#[derive(Debug, Args)]
struct Render {
    /// The benchmark file: TOML with the tables [workflow], [platform] and [workload].
    #[arg(value_name = "FILE")]
    benchmark: PathBuf,
    /// Write to this file, or to NAME.yaml in this folder [default: stdout].
    #[arg(long, value_name = "FILE|DIR")]
    out: Option<PathBuf>,
}

impl K8s {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        match self.command {
            Command::Render(render) => render.run(),
        }
    }
}

impl Render {
    fn run(self) -> Outcome<ExitCode> {
        let benchmark = k8s::read(&self.benchmark)?;
        let folder = self.benchmark.parent().unwrap_or(Path::new("."));
        let job = Job::new(benchmark, folder, config_of)
            .map_err(|failure| failure.context(self.benchmark.display().to_string()))?;
        let yaml = job.to_yaml()?;
        let Some(out) = self.out else { return print(yaml.trim_end()) };
        let file = if out.is_dir() { out.join(format!("{}.yaml", job.name())) } else { out };
        std::fs::write(&file, yaml)
            .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
        note(format!("wrote {}", file.display()));
        Ok(ExitCode::Done)
    }
}
