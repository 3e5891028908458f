//! The command line: one subcommand a file.

mod checkpoints;
mod data;
mod export;
mod plan;
mod report;
mod train;
mod workloads;

use std::io::Write;

use clap::{Parser, Subcommand};

use crate::announce::tell_failure;
use crate::failure::{ExitCode, Failure, Outcome};
use crate::run::Over;
use crate::telemetry::LogFormat;

/// A fixed, self-instrumented GPT and Llama training workload for AI clusters.
///
/// Says how fast a machine or cluster trains, where each step's time goes, and whether checkpoints
/// and restarts work. Start with `yardstick train`; under `mpirun` the same command uses all ranks.
#[derive(Debug, Parser)]
#[command(name = "yardstick", version, propagate_version = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Train(Box<train::Train>),
    Workloads(workloads::Workloads),
    Plan(plan::Plan),
    Report(report::Report),
    Data(data::Data),
    Ckpt(checkpoints::Ckpt),
    Export(export::Export),
}

/// Runs one command line and returns its exit code. Errors are told on stderr.
pub fn main() -> ExitCode {
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
        Command::Workloads(workloads) => workloads.run(),
        Command::Plan(plan) => plan.run(),
        Command::Report(report) => report.run(),
        Command::Data(data) => data.run(),
        Command::Ckpt(ckpt) => ckpt.run(),
        Command::Export(export) => export.run(),
    };
    outcome.unwrap_or_else(|failure| tell(LogFormat::Text, &failure))
}

fn tell(format: LogFormat, failure: &Failure) -> ExitCode {
    tell_failure(format, failure);
    failure.code
}

/// A rank that failed, also to part from the others, ends at once: its communication thread may be
/// stuck in an MPI library, whose exit handlers would then wait for it or fail.
fn end_training(format: LogFormat, outcome: Outcome<Over>) -> ExitCode {
    let code = match outcome {
        Ok(Over { code, has_parted: true }) => return code,
        Ok(Over { code, .. }) => code,
        Err(failure) => tell(format, &failure),
    };
    let _ = std::io::stdout().flush();
    launch::signals::exit_at_once(code as i32)
}

/// Makes a panic on any thread the end of the process, with exit code 1: a rank that is half dead
/// would let the others hang.
pub fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        launch::signals::exit_at_once(ExitCode::Internal as i32);
    }));
}

/// Writes an answer to stdout. A reader that went away early is not an error.
fn print(text: impl std::fmt::Display) -> Outcome<ExitCode> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(ExitCode::Internal, error).context("stdout"))
        }
        _ => Ok(ExitCode::Done),
    }
}

/// Writes an answer to stdout as JSON.
fn print_json(value: &impl serde::Serialize) -> Outcome<ExitCode> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new(ExitCode::Internal, error))?;
    print(text)
}
