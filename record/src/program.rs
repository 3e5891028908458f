//! The program of this process.

use std::sync::OnceLock;

/// Version of a program and the sources that it was built from.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Version, as in `0.1.0`.
    pub version: &'static str,
    /// Commit, with `-dirty` if its sources differed from that; `None` if unknown.
    pub commit: Option<&'static str>,
    /// Version, commit and features, as `--version` shows them.
    pub build: &'static str,
}

static PROGRAM: OnceLock<Program> = OnceLock::new();

impl Program {
    /// Registers the program of this process, once at the start.
    pub fn identify(self) {
        PROGRAM.get_or_init(|| self);
    }

    /// Returns the program of this process; the tests of a library have no commit.
    pub fn current() -> &'static Self {
        PROGRAM.get_or_init(|| {
            let version = env!("CARGO_PKG_VERSION");
            Self { version, commit: None, build: version }
        })
    }
}
