//! `yardstick ckpt verify`.

use clap::Args;

use super::super::{note, print};
use super::tiers::{SeenTier, Selection};
use super::unusable;
use record::ExitCode;
use record::text::number_format::count;
use trainer::failure::Outcome;

/// Read a checkpoint and check every byte against its digests, on each tier that has it.
///
/// Wrong bytes are read again, at most twice. Bytes that are right only then are named on stderr:
/// memory or the network damages data. A copy that a restore has rejected (`rejected` in `ckpt ls`)
/// is read if --checkpoint names it, and reinstated if it is intact; so is one of which only the
/// files of some ranks are rejected.
#[derive(Debug, Args)]
pub(super) struct Verify {
    #[command(flatten)]
    selection: Selection,
    /// Name of the checkpoint [default: the newest committed one].
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,
}

impl Verify {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let tiers = self.selection.open()?;
        let name = self.checkpoint.map_or_else(|| tiers.newest(), Ok)?;
        let mut problems = 0;
        for tier in tiers.holders_of_any_state(&name)? {
            problems += verify(tier, &name)?;
        }
        if problems == 0 {
            return Ok(ExitCode::Done);
        }
        Err(unusable(anyhow::anyhow!("{name}: {}", count(problems, "problem"))))
    }
}

/// Verifies a checkpoint on one tier and returns the number of problems.
fn verify(SeenTier { planned, store }: &SeenTier, name: &str) -> Outcome<usize> {
    let tier = planned.name;
    let report = store.verify(name).map_err(unusable)?;
    report.warnings.iter().for_each(|warning| note(format!("tier {tier}: {warning}")));
    if report.problems.is_empty() {
        if report.is_rejected {
            store.reinstate(name).map_err(unusable)?;
            print(format!("{name} on {tier}: counts again; a restore had rejected it"))?;
        }
        print(format!(
            "{name} on {tier}: ok, {}, {}, {} bytes",
            count(report.files, "file"),
            count(report.chunks, "chunk"),
            report.bytes
        ))?;
    }
    for problem in &report.problems {
        print(format!("{name} on {tier}: {problem}"))?;
    }
    Ok(report.problems.len())
}
