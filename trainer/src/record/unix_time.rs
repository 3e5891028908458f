//! The time that files of a run record.

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix time in milliseconds.
pub(crate) fn unix_ms() -> u64 {
    unix_ms_at(SystemTime::now())
}

/// A time as Unix time in milliseconds.
pub(crate) fn unix_ms_at(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
