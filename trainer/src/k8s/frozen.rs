//! The frozen benchmark file inside of a job: what the run was rendered from.

use std::ffi::OsStr;
use std::path::Path;

use crate::failure::{Failure, Outcome};

/// Names the file to ranks.
pub(super) const VARIABLE: &str = "YARDSTICK_BENCHMARK";

/// The benchmark file that this process was started for, if it was for one.
///
/// # Errors
/// Exit code 2 for one that cannot be read.
pub(crate) fn of_environment() -> Outcome<Option<String>> {
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(|path| read(&path)).transpose()
}

fn read(path: &OsStr) -> Outcome<String> {
    let path = Path::new(path);
    std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "{VARIABLE}={}: expected the benchmark file of this job: {error}\n  hint: unset the \
             variable where there is none",
            path.display()
        ))
    })
}
