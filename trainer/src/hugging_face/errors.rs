//! Usage errors that name the flag and the path.

use std::fmt::Display;
use std::path::Path;

use crate::failure::Failure;

/// Hint for an `--out` that cannot be written.
pub(super) const NEW_FOLDER: &str = "name a folder that does not exist";

/// Returns an error of `--init-from`.
pub(super) fn import_error(path: &Path, error: impl Display) -> Failure {
    Failure::usage(format!("--init-from: {}: {error}", path.display()))
}

/// Returns an error of `--out`.
pub(super) fn export_error(path: &Path, error: impl Display) -> Failure {
    Failure::usage(format!("--out {}: {error}", path.display()))
}
