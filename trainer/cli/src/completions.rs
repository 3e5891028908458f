//! `yardstick completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Arguments, print};
use record::ExitCode;
use trainer::failure::Outcome;

/// Print a completion script for a shell.
///
/// For bash, write it to ~/.local/share/bash-completion/completions/yardstick; for zsh, to
/// _yardstick in a folder of $fpath; for fish, to ~/.config/fish/completions/yardstick.fish.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// Shell of the script.
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "yardstick", &mut script);
        print(String::from_utf8_lossy(&script).trim_end())
    }
}
