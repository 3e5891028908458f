//! The header of a safetensors file: 8 bytes of length, then JSON; the data follows it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::errors::import_error;
use crate::failure::Outcome;

/// Longest header that the format allows.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// One tensor in a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// Start and end in bytes, relative to the start of the data.
    pub(super) data_offsets: [u64; 2],
}

/// The tensors of a file by name.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) entries: BTreeMap<String, Entry>,
    /// Offset of the data in the file, bytes.
    pub(super) data_start: u64,
}

/// The bytes before the data, padded so that the data is aligned.
pub(super) fn write(
    metadata: &BTreeMap<&str, String>,
    entries: &BTreeMap<String, Entry>,
) -> serde_json::Result<Vec<u8>> {
    let mut header = serde_json::json!({ "__metadata__": metadata });
    for (name, entry) in entries {
        header[name] = serde_json::to_value(entry)?;
    }
    let mut json = serde_json::to_vec(&header)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    Ok([&(json.len() as u64).to_le_bytes()[..], &json].concat())
}

/// Reads a file's header and checks that every tensor is inside the file.
pub(super) fn read(path: &Path, file: &mut File) -> Outcome<Header> {
    let malformed = |what: &str| import_error(path, what);
    let unreadable = |error: std::io::Error| malformed(&format!("cannot read: {error}"));
    let file_bytes = file.metadata().map_err(unreadable)?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(unreadable)?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_BYTES_MAX.min(file_bytes.saturating_sub(8)) {
        return Err(malformed("not a safetensors file: its header length exceeds the file"));
    }
    let mut json = vec![0; length as usize];
    file.read_exact(&mut json).map_err(unreadable)?;
    let invalid =
        |error: serde_json::Error| malformed(&format!("not a safetensors header: {error}"));
    let mut values: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&json).map_err(invalid)?;
    values.remove("__metadata__");
    let mut entries = BTreeMap::new();
    for (name, value) in values {
        let entry: Entry = serde_json::from_value(value).map_err(invalid)?;
        let [start, end] = entry.data_offsets;
        if start > end || end > file_bytes - 8 - length {
            return Err(malformed(&format!(
                "{name}: bytes {start} to {end} are outside of the file"
            )));
        }
        entries.insert(name, entry);
    }
    Ok(Header { entries, data_start: 8 + length })
}
