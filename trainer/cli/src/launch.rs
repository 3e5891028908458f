//! `yardstick launch`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};
use launch::hostfile::{Host, default_hostfile, read_hostfile};
use launch::slurm::{Allocation, allocation};
use launch::supervisor::{self, Ending, Request, Transport};

use super::log_file::LogFile;
use super::{Arguments, Command, LogArguments, agent, say};
use record::ExitCode;
use record::text::duration;
use telemetry::LogFormat;
use trainer::failure::{Failure, Outcome};
use trainer::run::RunEvidence;

/// Run a command on several hosts with `mpirun`, and say whether it worked.
///
/// Waits for the hosts, checks that they are as many and as different as asked for, and starts
/// `mpirun` with what makes it correct inside of MPIJob pods. A run counts as successful when its
/// record is complete and of all ranks. SIGTERM lets ranks save and stop; a lost host is noticed
/// within seconds, named in the record, and ends the run, which can start again from its newest
/// checkpoint. Exits as the command does.
#[derive(Debug, Args)]
pub(super) struct Launch {
    /// Hosts to run on; those that the host file has beyond that are spare [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,
    /// Ranks on each host [default: the slots of the first one in the host file, or 1].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_node: Option<u32>,
    /// Hosts, one a line, as mpirun takes them: `HOST slots=K` or `HOST:K` [default: that of
    /// the launcher's environment, /etc/mpi/hostfile, the Slurm allocation, or this host alone].
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// Accept several hosts, such as pods, on one node.
    #[arg(long)]
    share_nodes: bool,
    /// How long to wait for hosts.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    wait: Duration,
    /// How long ranks may take to save and end after SIGTERM. Less than
    /// terminationGracePeriodSeconds of the pod.
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = duration::parse)]
    grace: Duration,
    /// How often to start again when a host is lost or drained, or a rank is killed.
    #[arg(long, value_name = "N", default_value = "0")]
    restarts: u32,
    /// Environment variables to pass on to ranks, beside AWS_*, FI_*, LD_LIBRARY_PATH, NCCL_*,
    /// OTEL_*, RUST_*, UCX_*, YARDSTICK_* and those of job files (see docs/launching.md).
    #[arg(long, value_name = "NAME")]
    forward: Vec<String>,
    /// Append what the launcher says, not its ranks, to this file, too: a pod's log is gone with
    /// its pod.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The mpirun of the MPI library that this program is linked with.
    #[arg(long, value_name = "FILE", default_value = "mpirun")]
    mpirun: PathBuf,
    /// A further argument of mpirun; may be repeated.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    mpirun_arg: Vec<OsString>,
    #[command(flatten)]
    format: LogArguments,
    /// What to run: a subcommand that ranks take part in, as in `-- train --out DIR`.
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
    let parsed =
        parsed(command).map_err(|error| Failure::usage(format!("what is launched: {error}")))?;
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
            "launch: expected --out DIR after `--`: what is launched is judged by its record",
        )
    })
}

/// Returns an id that differs between launches.
fn id() -> String {
    let unix_ms = record::text::unix_time::unix_ms();
    format!("{}-{}-{unix_ms}", record::machine::host_name(), std::process::id())
}
