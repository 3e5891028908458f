//! `yardstick`: a fixed, self-instrumented GPT training workload for AI clusters.

use std::process::ExitCode;

fn main() -> ExitCode {
    trainer::cli::end_on_panic();
    ExitCode::from(trainer::cli::main() as u8)
}
