//! The header of a safetensors file: 8 bytes of length, then JSON, then the data.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::import::refuse;
use crate::failure::Outcome;

/// The format refuses longer headers.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// One tensor in a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// From the start of the data.
    pub(super) data_offsets: [u64; 2],
}

/// A file's tensors by name, and where its data starts.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) data_start: u64,
}

/// Everything before the data, padded so that the data is aligned.
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

/// Reads a file's header and checks that every tensor lies inside of the file.
pub(super) fn read(path: &Path, file: &mut File) -> Outcome<Header> {
    let malformed = |what: &str| refuse(path, what);
    let told = |error: std::io::Error| malformed(&format!("cannot read: {error}"));
    let file_bytes = file.metadata().map_err(told)?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(told)?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_BYTES_MAX.min(file_bytes.saturating_sub(8)) {
        return Err(malformed("not a safetensors file: its header does not fit into it"));
    }
    let mut json = vec![0; length as usize];
    file.read_exact(&mut json).map_err(told)?;
    let parsed =
        |error: serde_json::Error| malformed(&format!("not a safetensors header: {error}"));
    let mut values: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&json).map_err(parsed)?;
    values.remove("__metadata__");
    let mut entries = BTreeMap::new();
    for (name, value) in values {
        let entry: Entry = serde_json::from_value(value).map_err(parsed)?;
        let [start, end] = entry.data_offsets;
        if start > end || end > file_bytes - 8 - length {
            return Err(malformed(&format!("{name}: bytes {start} to {end} are not in the file")));
        }
        entries.insert(name, entry);
    }
    Ok(Header { entries, data_start: 8 + length })
}
