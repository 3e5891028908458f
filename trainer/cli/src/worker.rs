//! `yardstick worker`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use launch::worker::{SshdOptions, WorkerOptions};

use super::{LogArguments, agent, say};
use record::ExitCode;
use record::text::duration;
use trainer::failure::{Failure, Outcome};

/// Serve as a worker pod of an MPIJob: its first process.
///
/// Starts an ssh server, through which `launch` and `mpirun` start ranks in the environment of the
/// pod. After SIGTERM, as when a node is drained, the ranks of this pod save and stop before the
/// pod ends. Runs as any user that has an account, without capabilities.
#[derive(Debug, Args)]
pub(super) struct Worker {
    /// Port of the ssh server.
    #[arg(long, value_name = "PORT", default_value = "2222")]
    port: u16,
    /// Time for ranks to save and end after SIGTERM; must be less than
    /// terminationGracePeriodSeconds of the pod.
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = duration::parse)]
    grace: Duration,
    /// Folder with `id_rsa` and `authorized_keys`: sshAuthMountPath of the job [default: .ssh in
    /// the home folder].
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
    /// Path of the ssh server.
    #[arg(long, value_name = "FILE", default_value = "/usr/sbin/sshd")]
    sshd: PathBuf,
    #[command(flatten)]
    pub(super) log: LogArguments,
}

impl Worker {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let default_keys = || Some(std::env::home_dir()?.join(".ssh"));
        let keys = self.keys.or_else(default_keys).ok_or_else(|| {
            Failure::usage("worker: expected --keys DIR, as this user has no home folder")
        })?;
        let sshd = SshdOptions { program: self.sshd, port: self.port, keys };
        let options = WorkerOptions { sshd, grace: self.grace, agent: agent::NAME.to_owned() };
        launch::worker::run(&options, &|text| say("worker", text))
            .map_err(|error| Failure::new(ExitCode::Environment, error))?;
        Ok(ExitCode::Done)
    }
}
