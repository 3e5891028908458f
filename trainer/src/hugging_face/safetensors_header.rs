//! Header of a safetensors file: 8 bytes of length, then JSON; the data follows.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::errors::import_error;
use crate::failure::Outcome;
use record::text::in_user_words;

/// Longest header that the format allows.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Tensor in a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Start and end in bytes, relative to the start of the data.
    pub(super) data_offsets: [u64; 2],
}

impl Entry {
    /// Returns the size of a tensor of this type and shape, unless no file is that large.
    fn bytes_by_shape(&self) -> Option<u64> {
        let elements = self.shape.iter().try_fold(1_usize, |a, b| a.checked_mul(*b))?;
        let bits = elements.checked_mul(self.dtype.bitsize())?;
        Some(bits.div_ceil(8) as u64)
    }
}

/// Tensors of a file by name.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) entries: BTreeMap<String, Entry>,
    /// Offset of the data in the file, bytes.
    pub(super) data_start: u64,
}

/// Returns the bytes before the data, padded so that the data is aligned.
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

/// Reads a file's header and checks, as the safetensors library does, that every tensor has the
/// size of its type and shape, and that together they cover the data of the file.
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
    let invalid = |error: serde_json::Error| {
        malformed(&format!("not a safetensors header: {}", in_user_words(&error.to_string())))
    };
    let mut values: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&json).map_err(invalid)?;
    values.remove("__metadata__");
    let mut entries = BTreeMap::new();
    for (name, value) in values {
        let entry: Entry = serde_json::from_value(value)
            .map_err(|error| in_user_words(&error.to_string()))
            .map_err(|error| malformed(&format!("{name}: not a safetensors entry: {error}")))?;
        check_size(&name, &entry).map_err(|error| malformed(&error))?;
        entries.insert(name, entry);
    }
    check_order(&entries, file_bytes - 8 - length).map_err(|error| malformed(&error))?;
    Ok(Header { entries, data_start: 8 + length })
}

fn check_size(name: &str, entry: &Entry) -> Result<(), String> {
    let [start, end] = entry.data_offsets;
    let found = end.checked_sub(start);
    let expected = entry.bytes_by_shape();
    if found.is_some() && found == expected {
        return Ok(());
    }
    let Entry { dtype, shape, .. } = entry;
    let expected = expected.map_or("fewer".to_owned(), |bytes| bytes.to_string());
    Err(format!(
        "{name}: expected {expected} bytes by its type {dtype:?} and shape {shape:?}, found bytes \
         {start} to {end}"
    ))
}

/// Checks that the tensors follow each other without overlaps or gaps, from the first byte of the
/// data to the last.
fn check_order(entries: &BTreeMap<String, Entry>, data_bytes: u64) -> Result<(), String> {
    let mut sorted: Vec<_> = entries.iter().collect();
    sorted.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut previous = "the header";
    let mut covered = 0;
    for (name, entry) in sorted {
        let [start, end] = entry.data_offsets;
        if start < covered {
            return Err(format!(
                "{previous} and {name} overlap: bytes {start} to {} of the data are of both",
                covered.min(end)
            ));
        }
        if start > covered {
            return Err(format!(
                "bytes {covered} to {start} of the data, between {previous} and {name}, belong to \
                 no tensor"
            ));
        }
        previous = name;
        covered = end;
    }
    if covered > data_bytes {
        return Err(format!(
            "{previous} ends at byte {covered} of the data, of which the file has {data_bytes}: it \
             is cut off"
        ));
    }
    if covered < data_bytes {
        return Err(format!(
            "bytes {covered} to {data_bytes} of the data, after {previous}, belong to no tensor"
        ));
    }
    Ok(())
}
