//! Alternating runs of two commands, so that both see the machine in the same states.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::comparable::not_comparable;
use super::side::Side;
use crate::error::{Error, Result};

/// Two commands, and their number of runs.
#[derive(Debug)]
pub struct Turns<'run> {
    /// Command of the base for `sh`; ` --out FOLDER` is added.
    pub base: &'run str,
    /// Command of the new side.
    pub new: &'run str,
    /// Number of runs of each command.
    pub rounds: usize,
    /// Folder for the folders of runs.
    pub folder: &'run Path,
}

/// Runs both commands in every round, in every other round the second one first. Calls `started`
/// before each run.
///
/// # Errors
/// Exit code 12 when a command does not end with 0 or leaves no record.
pub fn take_turns(turns: &Turns<'_>, mut started: impl FnMut(usize, &str)) -> Result<[Side; 2]> {
    let mut folders: [Vec<PathBuf>; 2] = [Vec::new(), Vec::new()];
    for round in 0..turns.rounds {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let (command, name) = [(turns.base, "base"), (turns.new, "new")][side];
            let folder = turns.folder.join(format!("{name}-{:02}", round + 1));
            started(round + 1, name);
            run(command, &folder)?;
            folders[side].push(folder);
        }
    }
    let [base, new] = folders.map(|folders| Side::read(&folders));
    Ok([base?, new?])
}

fn run(command: &str, folder: &Path) -> Result<()> {
    let quoted = format!("'{}'", folder.to_string_lossy().replace('\'', r"'\''"));
    let text = format!("{command} --out {quoted}");
    let output = Command::new("sh").args(["-c", &text]).output().map_err(Error::Shell)?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last: Vec<_> = stderr.lines().rev().take(5).collect();
    let last: Vec<_> = last.into_iter().rev().collect();
    Err(not_comparable(format!("{text}: {}\n{}", output.status, last.join("\n"))))
}
