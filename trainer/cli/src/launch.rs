//! `yardstick launch`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};
use launch::hostfile::{Host, default_hostfile, read_hostfile};
use launch::slurm::{Allocation, allocation};
use launch::supervisor::{self, Ending, Patience, Request, Transport};

use super::log_file::LogFile;
use super::{Arguments, Command, LogArguments, agent, say};
use record::ExitCode;
use record::text::duration;
use telemetry::LogFormat;
use trainer::failure::{Failure, Outcome};
use trainer::run::RunEvidence;

/// Run a command on several hosts with `mpirun`, and judge whether it succeeded.
///
/// Waits for the hosts, checks their number and that they differ, and starts `mpirun` with the
/// settings that MPIJob pods need. A run is successful if its record is complete and covers all
/// ranks. On SIGTERM, ranks save and stop. A lost host is detected within seconds and named in the
/// record; it ends the run, which can restart from its newest checkpoint. The exit code is that of
/// the command.
#[derive(Debug, Args)]
pub(super) struct Launch {
    /// Number of hosts to run on; further hosts of the host file are spare [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,
    /// Number of ranks on each host [default: the slots of the first host in the host file, or 1].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_node: Option<u32>,
    /// File of hosts, one per line, in the format of mpirun: `HOST slots=K` or `HOST:K` [default:
    /// that of the launcher's environment, /etc/mpi/hostfile, the Slurm allocation, or this host
    /// alone].
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// Accept several hosts, such as pods, on one node.
    #[arg(long)]
    share_nodes: bool,
    /// Timeout of the wait for hosts.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    wait: Duration,
    /// Time for ranks to save and end after SIGTERM; must be less than
    /// terminationGracePeriodSeconds of the pod.
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = duration::parse)]
    grace: Duration,
    /// Percentage of the usual timeouts of hosts, ranks and storage, for tests.
    #[arg(long, value_name = "N", default_value = "100", hide = true,
        value_parser = clap::value_parser!(u32).range(10..=1000))]
    patience_percent: u32,
    /// Maximum number of restarts after a host is lost or drained, or a rank is killed.
    #[arg(long, value_name = "N", default_value = "0")]
    restarts: u32,
    /// Environment variables to pass on to ranks, beside AWS_*, FI_*, LD_LIBRARY_PATH, NCCL_*,
    /// OTEL_*, RUST_*, UCX_*, YARDSTICK_* and those of job files (see docs/launching.md).
    #[arg(long, value_name = "NAME")]
    forward: Vec<String>,
    /// Also append the messages of the launcher, not of its ranks, to this file: the log of a pod
    /// is deleted with the pod.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Path of mpirun, of the MPI library that this program is linked with.
    #[arg(long, value_name = "FILE", default_value = "mpirun")]
    mpirun: PathBuf,
    /// Further argument of mpirun; may be repeated.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    mpirun_arg: Vec<OsString>,
    #[command(flatten)]
    format: LogArguments,
    /// Subcommand that ranks run, as in `-- train --out DIR`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Launch {
    /// Returns the format of log lines on stderr: JSON also where ranks log JSON.
    pub(super) fn log_format(&self) -> LogFormat {
        let launched = parsed(&self.command).map(|launched| launched.command.log_format());
        if launched.is_ok_and(|format| format == LogFormat::Json) {
            return LogFormat::Json;
        }
        self.format.format
    }

    pub(super) fn run(self) -> Outcome<ExitCode> {
        let file = self.log.clone().map(LogFile::new);
        let also_to_file = |text: &str| file.iter().for_each(|file| file.say(text));
        let report = |text: &str| {
            say("launch", text);
            also_to_file(text);
        };
        self.supervise(&report).inspect_err(|failure| {
            also_to_file(&format!("{failure}; exit code {}", failure.code as u8));
        })
    }

    fn supervise(self, report: &dyn Fn(&str)) -> Outcome<ExitCode> {
        let evidence = RunEvidence::new(folders(&self.command, self.restarts)?);
        let request = self.request()?;
        let Ending { code, text } =
            supervisor::run(&request, evidence, report).map_err(environment)?;
        report(&format!("{text}; exit code {code}"));
        Ok(ExitCode::try_from(code).unwrap_or(ExitCode::Internal))
    }

    fn request(self) -> Outcome<Request> {
        let Allocation { hosts, transport } = self.hosts()?;
        let listed = hosts[0].slots.unwrap_or(1);
        let program = std::env::current_exe()?;
        let request = Request {
            nodes: self.nodes.map_or(hosts.len(), |nodes| nodes as usize),
            ranks_per_node: self.ranks_per_node.map_or(listed, |ranks| ranks as usize),
            hosts,
            transport,
            share_nodes: self.share_nodes,
            wait: self.wait,
            grace: self.grace,
            patience: Patience::percent(self.patience_percent),
            restarts: self.restarts,
            mpirun: self.mpirun,
            mpirun_arguments: self.mpirun_arg,
            forward: self.forward,
            id: id(),
            version: env!("YARDSTICK_VERSION").to_owned(),
            program,
            arguments: self.command,
            agent: agent::NAME.to_owned(),
        };
        request.check().map_err(environment)?;
        Ok(request)
    }

    fn hosts(&self) -> Outcome<Allocation> {
        if let Some(path) = self.hostfile.clone().or_else(default_hostfile) {
            let hosts =
                read_hostfile(&path).map_err(|error| Failure::new(ExitCode::Usage, error))?;
            return Ok(Allocation { hosts, transport: Transport::Ssh });
        }
        let alone =
            || Allocation { hosts: vec![Host::new("localhost", None)], transport: Transport::Ssh };
        Ok(allocation().map_err(environment)?.unwrap_or_else(alone))
    }
}

fn environment(error: launch::Error) -> Failure {
    Failure::new(ExitCode::Environment, error)
}

/// Parses the command as a rank does.
fn parsed(command: &[OsString]) -> Result<Arguments, clap::Error> {
    let words = std::iter::once(OsString::from("yardstick")).chain(command.iter().cloned());
    Arguments::try_parse_from(words)
}

/// Checks the command as every rank would, and returns the folders in which it leaves records.
fn folders(command: &[OsString], restarts: u32) -> Outcome<Vec<PathBuf>> {
    let parsed = parsed(command)
        .map_err(|error| Failure::usage(format!("the launched command: {error}")))?;
    let is_fresh = match &parsed.command {
        Command::Train(train) => train.is_fresh(),
        Command::Bench(bench) => bench.train.is_fresh(),
        _ => false,
    };
    if is_fresh && restarts > 0 {
        let text =
            "launch: --restarts starts again in the folder of the run, which --fresh refuses";
        return Err(Failure::usage(text));
    }
    let folders = match parsed.command {
        Command::Train(train) => train.out().map(|out| vec![out.to_owned()]),
        Command::Bench(bench) => bench.folders(),
        Command::Comm(_) | Command::Doctor(_) => Some(Vec::new()),
        _ => {
            return Err(Failure::usage("launch: expected train, bench, comm or doctor after `--`"));
        }
    };
    folders.ok_or_else(|| {
        Failure::usage(
            "launch: expected --out DIR after `--`: a launch is judged by the record of its run",
        )
    })
}

/// Returns an id that differs between launches.
fn id() -> String {
    let unix_ms = record::text::unix_time::unix_ms();
    format!("{}-{}-{unix_ms}", record::machine::host_name(), std::process::id())
}
