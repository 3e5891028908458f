//! `yardstick man`.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};

use super::{Arguments, examples, print};
use record::ExitCode;
use trainer::failure::{Failure, Outcome};

/// Print the man page, or write a man page for each subcommand.
///
/// `yardstick man | man -l -` shows the page.
#[derive(Debug, Args)]
pub(super) struct Man {
    /// Write yardstick.1, yardstick-train.1 and so on to this folder instead of printing.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        match self.out {
            None => print(page()?.trim_end()),
            Some(folder) => write_all(&folder).map(|()| ExitCode::Done).map_err(|error| {
                let folder = folder.display();
                Failure::usage(format!("--out {folder}: expected a folder to write to: {error}"))
            }),
        }
    }
}

/// Returns the command with the plain version: a page holds for every build of it.
fn command() -> clap::Command {
    examples::added(Arguments::command()).version(env!("CARGO_PKG_VERSION"))
}

fn page() -> Outcome<String> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command())
        .render(&mut page)
        .map_err(|error| Failure::new(ExitCode::Internal, error))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

fn write_all(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command(), folder)
}
