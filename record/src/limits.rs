//! Size limits of files that are read whole. A larger file was not written by this program, and is
//! refused before it is read, as it may fill the memory. Limits of checkpoint files are in
//! `checkpoint/src/format/limits.rs`.

/// `record.json`: some kilobytes for each rank and for each attempt. Enough for 10,000 ranks with a
/// history of thousands of attempts.
pub const RECORD_BYTES_MAX: u64 = 512 << 20;

/// `attempts/NNN.json`, also of 10,000 ranks.
pub const ATTEMPT_BYTES_MAX: u64 = 64 << 20;

/// Files of a few fields: `identity.json`, error and stall files, entries of the data cache.
pub const NOTE_BYTES_MAX: u64 = 1 << 20;

/// Files that people write, or could: configurations, benchmarks, golden losses, and the
/// configuration and index of a model folder.
pub const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// `PROMOTED.json` and `COPIED.json` in a store of records: a hundred bytes for each run.
pub const LIST_BYTES_MAX: u64 = 16 << 20;

/// `kubectl get pods -o json`: some 20 kB for each pod, of which 10,000 are in a namespace.
pub const PODS_BYTES_MAX: u64 = 1 << 30;

/// A file in a bundle of a comparison. The largest are step files: some 500 bytes for each step,
/// of which there are millions.
pub const BUNDLED_BYTES_MAX: u64 = 2 << 30;
