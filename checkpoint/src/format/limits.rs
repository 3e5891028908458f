//! Largest sizes of the checkpoint files that are read whole. This crate writes no larger one; one
//! that is larger is refused before it is read, since it may fill the memory of every rank.

use std::io;
use std::path::Path;

use record::files::IoError;

/// Refuses to write a file that no reader would take.
pub(crate) fn check_size(path: &Path, bytes: &[u8], bytes_max: u64) -> Result<(), IoError> {
    let found = bytes.len() as u64;
    if found <= bytes_max {
        return Ok(());
    }
    let text = format!("expected at most {bytes_max} bytes, found {found}");
    Err(IoError::at(path, "write")(io::Error::new(io::ErrorKind::FileTooLarge, text)))
}

/// `MANIFEST.json`: 100 bytes for each rank, and the caller's state. Enough for a million ranks.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 128 << 20;

/// `rRRRRR.idx.json`: some 300 bytes for each box and 19 for each chunk of a rank. Enough for
/// 400,000 boxes, or for 100 TB in chunks of 16 MiB.
pub(crate) const INDEX_BYTES_MAX: u64 = 128 << 20;

/// Files of a few fields: `RUN.json`, `PROMOTION.json`, `rRRRRRR.refused`.
pub(crate) const NOTE_BYTES_MAX: u64 = 1 << 20;
