//! `yardstick verify`.

use std::path::PathBuf;

use clap::Args;

use super::{VERSION, judged, print};
use record::ExitCode;
use record::text::number_format;
use trainer::failure::Outcome;
use verdict::compare::{Bundle, Verified};

/// Recompute the verdict of `compare --bundle DIR`, and check that it is the same to the byte.
///
/// Exits with 12 if a file was changed, is missing or was added, or if the records give another
/// verdict.
#[derive(Debug, Args)]
pub(super) struct Verify {
    /// Folder of the bundle.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl Verify {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let Verified { comparison, files } = judged(Bundle::at(&self.folder, VERSION).verify())?;
        let files = number_format::count(files, "file");
        let (folder, headline) = (self.folder.display(), comparison.headline);
        let code = comparison.exit_code;
        print(format!("{folder}: verified, {files}: {headline}; exit code {code}"))
    }
}
