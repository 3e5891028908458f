//! `yardstick agent`, which `launch` starts on every host; not for people.

use std::io::{BufReader, stdin, stdout};

use clap::Args;

use record::ExitCode;
use trainer::failure::{Failure, Outcome};

/// Serve a `yardstick launch` on this host, which starts this process over ssh.
#[derive(Debug, Args)]
pub(super) struct Agent {
    /// Id of the launch.
    launch: String,
}

/// Name on the command line.
pub(super) const NAME: &str = "agent";

impl Agent {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let version = env!("YARDSTICK_VERSION");
        launch::agent::run(NAME, &self.launch, version, BufReader::new(stdin()), stdout())
            .map_err(|error| Failure::new(ExitCode::Environment, error))?;
        Ok(ExitCode::Done)
    }
}
