//! `yardstick`: a fixed, self-instrumented GPT training workload for AI clusters.

use std::process::ExitCode;

use trainer::out_of_memory::ExitingAllocator;

#[global_allocator]
static ALLOCATOR: ExitingAllocator = ExitingAllocator;

fn main() -> ExitCode {
    trainer::cli::end_on_panic();
    ExitCode::from(trainer::cli::main() as u8)
}
