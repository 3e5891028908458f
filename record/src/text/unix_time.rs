//! The time that files of a run record.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::DateTime;

/// Unix time in milliseconds.
pub fn unix_ms() -> u64 {
    unix_ms_at(SystemTime::now())
}

/// A time as Unix time in milliseconds.
pub fn unix_ms_at(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Unix time in milliseconds as UTC for people, as in "2026-11-24 08:30"; `null` where it is no
/// time of a calendar.
pub fn minute(unix_ms: u64) -> String {
    let time = DateTime::from_timestamp_millis(unix_ms.cast_signed());
    time.map_or_else(|| "null".to_owned(), |time| time.format("%F %H:%M").to_string())
}
