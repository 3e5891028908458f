//! `yardstick`: a fixed, self-instrumented GPT training workload for AI clusters.
//!
//! Each subcommand has a file or folder of its own.

mod agent;
mod baseline;
mod bench;
mod ckpt;
mod comm;
mod compare;
mod completions;
mod data;
mod devices;
mod doctor;
mod examples;
mod export;
mod fingerprint;
mod k8s;
mod launch;
mod log_file;
mod man;
mod plan;
mod report;
mod storage;
mod train;
mod verify;
mod worker;
mod workloads;

use std::io::Write;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use device::threads;
use record::files::process_limits;

use record::text::in_user_words;
use record::text::printable;
use record::{ExitCode, Program};
use telemetry::{Ended, report_failure, report_silence, say};
use telemetry::{LogFormat, log_lines};
use trainer::failure::{Failure, Outcome};
use trainer::out_of_memory::ExitingAllocator;
use trainer::run::Exit;

/// A fixed, self-instrumented GPT and Llama training workload for AI clusters.
///
/// Measures the training speed of a machine or cluster, the time in each phase of a step, and the
/// reliability of checkpoints and restarts. Start with `yardstick train`; under `mpirun`, the same
/// command trains on all ranks.
#[derive(Debug, Parser)]
#[command(
    name = "yardstick",
    version = env!("YARDSTICK_VERSION"),
    propagate_version = true,
    after_long_help = EXIT_CODES,
    max_term_width = 100
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Exit codes, shown by `--help` and in the man page.
const EXIT_CODES: &str = "\
Exit codes of a process:
   0  done
   1  internal error
   2  bad usage, configuration or data file
   3  environment not fit: a device, a library, memory or a thread is missing, or the system refuses
      to write; `doctor`: a check failed
   4  a loss or gradient is not finite, or not the golden loss; `comm`: a wrong element
   5  a peer was lost, or an operation exceeded its deadline
   6  no usable checkpoint where one is required, or a required save failed
  10  `compare` found that something got worse
  11  `compare`: too noisy to say that nothing got worse (0 with --allow-noisy)
  12  `compare`, `verify`: not comparable: a record is missing, damaged, incomplete or of
      something else; `fingerprint check`: there are no golden losses with the key of the run
  75  stopped on request after a committed checkpoint; the same command continues the run
 130  a second Ctrl-C; `launch`: any second signal to stop. Steps that are not saved are lost";

#[derive(Debug, Subcommand)]
enum Command {
    Train(Box<train::Train>),
    Launch(Box<launch::Launch>),
    Worker(worker::Worker),
    #[command(hide = true)]
    Agent(agent::Agent),
    Workloads(workloads::Workloads),
    Plan(plan::Plan),
    Devices(devices::Devices),
    Doctor(doctor::Doctor),
    Report(report::Report),
    Compare(Box<compare::Compare>),
    Verify(verify::Verify),
    Baseline(baseline::Baseline),
    Bench(Box<bench::BenchCommand>),
    Comm(comm::Comm),
    Fingerprint(fingerprint::Fingerprint),
    Data(data::Data),
    Ckpt(ckpt::Ckpt),
    Export(export::Export),
    K8s(k8s::K8s),
    Completions(completions::Completions),
    Man(man::Man),
}

/// Options of logging, for commands that run for long or on several ranks.
#[derive(Debug, clap::Args)]
struct LogArguments {
    /// Format of the log on stderr.
    #[arg(long = "log-format", value_enum, value_name = "FORMAT", default_value = "text")]
    format: LogFormat,
}

impl Command {
    /// Returns the format of log lines on stderr.
    fn log_format(&self) -> LogFormat {
        match self {
            Self::Train(train) => train.log.format,
            Self::Bench(bench) => bench.train.log.format,
            Self::Launch(launch) => launch.log_format(),
            Self::Worker(worker) => worker.log.format,
            Self::Doctor(doctor) => doctor.log.format,
            Self::Comm(comm) => comm.log.format,
            _ => LogFormat::Text,
        }
    }

    /// Returns whether the command computes on all cores without being a rank.
    fn computes_alone(&self) -> bool {
        matches!(
            self,
            Self::Plan(_) | Self::Data(_) | Self::Export(_) | Self::Workloads(_) | Self::K8s(_)
        )
    }
}

#[global_allocator]
static ALLOCATOR: ExitingAllocator = ExitingAllocator;

fn main() -> std::process::ExitCode {
    end_on_panic();
    PROGRAM.identify();
    std::process::ExitCode::from(run() as u8)
}

/// Runs the command line of this process and returns its exit code. Errors go to stderr.
fn run() -> ExitCode {
    trainer::run::start_clock::begin_process();
    process_limits::raise_open_files();
    // Otherwise SIGXFSZ ends the process.
    let _ = ::launch::signals::survive_file_size_limit();
    let mut command = examples::added(Arguments::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let parsed = matches.and_then(|matches| {
        Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    });
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => return reject(&error),
    };
    log_lines::set_format(arguments.command.log_format());
    checkpoint::remote::on_silence(report_silence);
    if arguments.command.computes_alone()
        && let Err(error) = rayon::ThreadPoolBuilder::new().build_global()
    {
        let error = threads::Error::new("computing", std::io::Error::other(error));
        return report(&error.into());
    }
    let outcome = match arguments.command {
        Command::Train(train) => return end_training(train.run()),
        Command::Bench(bench) => return end_training(bench.run()),
        Command::Launch(launch) => launch.run(),
        Command::Worker(worker) => worker.run(),
        Command::Agent(agent) => agent.run(),
        Command::Doctor(doctor) => return end_training(doctor.run()),
        Command::Comm(comm) => return end_training(comm.run()),
        Command::Workloads(workloads) => workloads.run(),
        Command::Plan(plan) => plan.run(),
        Command::Devices(devices) => devices.run(),
        Command::Report(report) => report.run(),
        Command::Compare(compare) => compare.run(),
        Command::Verify(verify) => verify.run(),
        Command::Baseline(baseline) => baseline.run(),
        Command::Fingerprint(fingerprint) => fingerprint.run(),
        Command::Data(data) => data.run(),
        Command::Ckpt(ckpt) => ckpt.run(),
        Command::Export(export) => export.run(),
        Command::K8s(k8s) => k8s.run(),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
    };
    outcome.unwrap_or_else(|failure| report(&failure))
}

/// Reports what is wrong with the arguments, or shows what they ask for: `--help`, `--version`.
fn reject(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::Done;
    }
    // A command line that cannot be parsed has no parsed format.
    let words: Vec<_> = std::env::args().collect();
    let is_json = words.windows(2).any(|pair| pair == ["--log-format", "json"])
        || words.iter().any(|word| word == "--log-format=json");
    if is_json {
        log_lines::set_format(LogFormat::Json);
        let text = reworded(error).unwrap_or_else(|| error.render().to_string());
        return report(&Failure::usage(text.trim_end()));
    }
    match reworded(error) {
        Some(text) => drop(write!(std::io::stderr(), "{text}")),
        None => drop(error.print()),
    }
    ExitCode::Usage
}

/// Returns the text of an error of clap, with the wording of Rust's parsers replaced by ours.
fn reworded(error: &clap::Error) -> Option<String> {
    let problem = std::error::Error::source(error)?.to_string();
    let words = in_user_words(&problem);
    (words != problem).then(|| error.render().to_string().replace(&problem, &words))
}

/// Version, commit and features of this program.
const VERSION: &str = env!("YARDSTICK_VERSION");

/// Commit of the sources, by `build.rs`; empty where it is unknown.
const COMMIT: &str = env!("YARDSTICK_COMMIT");

/// Identity of this program.
const PROGRAM: Program = Program {
    version: env!("CARGO_PKG_VERSION"),
    commit: if COMMIT.is_empty() { None } else { Some(COMMIT) },
    build: VERSION,
};

/// Converts an error of a verdict to a failure with its exit code.
fn judged<T>(result: verdict::Result<T>) -> Outcome<T> {
    result.map_err(|error| Failure::new(error.exit_code(), error))
}

fn report(failure: &Failure) -> ExitCode {
    report_failure(&Ended {
        text: failure.to_string(),
        code: failure.code,
        step: failure.step,
        caused_by_rank: failure.rank,
        reported_by: failure.reported_by,
    });
    failure.code
}

/// Ends the process without exit handlers if training or MPI_Finalize failed: the communication
/// thread may be stuck in the MPI library, whose exit handlers would then wait for it or fail.
fn end_training(outcome: Outcome<Exit>) -> ExitCode {
    let code = match outcome {
        Ok(Exit { code, is_orderly: true, .. }) => return code,
        Ok(Exit { code, .. }) => code,
        Err(failure) => report(&failure),
    };
    let _ = std::io::stdout().flush();
    ::launch::signals::exit_immediately(code as i32)
}

/// Makes a panic on any thread end the process with exit code 1: the other ranks would wait for a
/// rank that lost a thread. If a system limit caused it, as in libraries that cannot start a
/// thread, it is an error of the environment.
fn end_on_panic() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let explained = process_limits::behind_panic(panic.payload_as_str().unwrap_or_default());
        let code = match (explained, log_lines::format()) {
            (Some(text), _) => report(&Failure::new(ExitCode::Environment, anyhow::anyhow!(text))),
            (None, LogFormat::Json) => {
                report(&Failure::new(ExitCode::Internal, anyhow::anyhow!("{panic}")))
            }
            (None, LogFormat::Text) => {
                default_hook(panic);
                ExitCode::Internal
            }
        };
        ::launch::signals::exit_immediately(code as i32);
    }));
}

/// Writes text for people to stdout, without terminal control sequences.
fn print(text: impl std::fmt::Display) -> Outcome<ExitCode> {
    write_line(&printable(&text.to_string()))
}

/// Writes a line to stdout. A closed pipe is not an error.
fn write_line(text: &str) -> Outcome<ExitCode> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(ExitCode::Internal, error).context("stdout"))
        }
        _ => Ok(ExitCode::Done),
    }
}

/// Writes a line to stderr about something that the user may not expect.
fn note(text: impl std::fmt::Display) {
    say("note", &text.to_string());
}

/// Writes a value to stdout as JSON.
fn print_json(value: &impl serde::Serialize) -> Outcome<ExitCode> {
    write_line(&json(value)?)
}

fn json(value: &impl serde::Serialize) -> Outcome<String> {
    serde_json::to_string_pretty(value).map_err(|error| Failure::new(ExitCode::Internal, error))
}
