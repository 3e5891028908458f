//! The command line: each subcommand in a file of its own.

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
mod export;
mod fingerprint;
mod k8s;
mod launch;
mod log_file;
mod man;
mod plan;
mod report;
mod train;
mod worker;
mod workloads;

use std::io::Write;

use clap::{Parser, Subcommand};

use crate::failure::{ExitCode, Failure, Outcome};
use crate::run::Exit;
use crate::telemetry::LogFormat;
use crate::telemetry::console::report_failure;

/// A fixed, self-instrumented GPT and Llama training workload for AI clusters.
///
/// Measures how fast a machine or cluster trains, where the time of each step goes, and whether
/// checkpoints and restarts work. Start with `yardstick train`; under `mpirun`, the same command
/// trains on all ranks.
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

/// Shown by `--help` and in the man page.
const EXIT_CODES: &str = "\
Exit codes of a process:
   0  done
   1  internal error
   2  bad usage, configuration or data file
   3  environment not fit: a device, a library or memory is missing; `doctor`: a check failed
   4  a loss or gradient is not finite, or not the golden loss; `comm`: a wrong element
   5  a peer was lost, or an operation exceeded its deadline
   6  no usable checkpoint where one is required, or a required save failed
  10  `compare` found that something got worse
  11  `compare --strict`: too noisy to say
  75  stopped on request after a committed checkpoint; the same command continues the run";

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

/// Runs the command line of this process and returns its exit code. Errors go to stderr.
pub fn main() -> ExitCode {
    crate::run::start_clock::begin_process();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::Usage } else { ExitCode::Done };
        }
    };
    let outcome = match arguments.command {
        Command::Train(train) => {
            let format = train.log_format;
            return end_training(format, train.run());
        }
        Command::Bench(bench) => {
            let format = bench.train.log_format;
            return end_training(format, bench.run());
        }
        Command::Launch(launch) => launch.run(),
        Command::Worker(worker) => worker.run(),
        Command::Agent(agent) => agent.run(),
        Command::Doctor(doctor) => return end_training(LogFormat::Text, doctor.run()),
        Command::Comm(comm) => return end_training(LogFormat::Text, comm.run()),
        Command::Workloads(workloads) => workloads.run(),
        Command::Plan(plan) => plan.run(),
        Command::Devices(devices) => devices.run(),
        Command::Report(report) => report.run(),
        Command::Compare(compare) => compare.run(),
        Command::Baseline(baseline) => baseline.run(),
        Command::Fingerprint(fingerprint) => fingerprint.run(),
        Command::Data(data) => data.run(),
        Command::Ckpt(ckpt) => ckpt.run(),
        Command::Export(export) => export.run(),
        Command::K8s(k8s) => k8s.run(),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
    };
    outcome.unwrap_or_else(|failure| report(LogFormat::Text, &failure))
}

fn report(format: LogFormat, failure: &Failure) -> ExitCode {
    report_failure(format, failure);
    failure.code
}

/// Ends the process without exit handlers if training or MPI_Finalize failed: the communication
/// thread may be stuck in the MPI library, whose exit handlers would then wait for it or fail.
fn end_training(format: LogFormat, outcome: Outcome<Exit>) -> ExitCode {
    let code = match outcome {
        Ok(Exit { code, is_orderly: true, .. }) => return code,
        Ok(Exit { code, .. }) => code,
        Err(failure) => report(format, &failure),
    };
    let _ = std::io::stdout().flush();
    ::launch::signals::exit_immediately(code as i32)
}

/// Makes a panic on any thread end the process, with exit code 1: the other ranks would wait for a
/// rank that lost one of its threads.
pub fn end_on_panic() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default_hook(panic);
        ::launch::signals::exit_immediately(ExitCode::Internal as i32);
    }));
}

/// Writes a line to stdout. A closed pipe is not an error.
fn print(text: impl std::fmt::Display) -> Outcome<ExitCode> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(ExitCode::Internal, error).context("stdout"))
        }
        _ => Ok(ExitCode::Done),
    }
}

/// Writes a line to stderr, about what the user may not expect.
fn note(text: impl std::fmt::Display) {
    // Nothing is left to tell where stderr is gone.
    let _ = writeln!(std::io::stderr(), "note: {text}");
}

/// Writes a line to stderr, about what a process does that serves ranks.
fn log(process: &str, text: &str) {
    let _ = writeln!(std::io::stderr(), "{process}: {text}");
}

/// Writes a value to stdout as JSON.
fn print_json(value: &impl serde::Serialize) -> Outcome<ExitCode> {
    print(json(value)?)
}

fn json(value: &impl serde::Serialize) -> Outcome<String> {
    serde_json::to_string_pretty(value).map_err(|error| Failure::new(ExitCode::Internal, error))
}
