//! `rRRRRR-NNN.safetensors`: the header of a shard, which any safetensors reader can parse.
//!
//! 8 bytes little-endian header length, JSON, spaces up to a multiple of [`ALIGN_BYTES`], data
//! without gaps. A box that is not the whole tensor gets a key like `h.0.weight[12:24,0:768]`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::index::BoxEntry;
use crate::tensor::{Dtype, TensorBox};

/// The data starts at a multiple of this, for O_DIRECT and GPUDirect Storage.
pub(crate) const ALIGN_BYTES: usize = 4096;
/// The safetensors format refuses longer headers.
pub(super) const HEADER_BYTES_MAX: usize = 100_000_000;

/// Tensor in a header.
#[derive(Serialize)]
struct Entry<'a> {
    dtype: Dtype,
    shape: &'a [usize],
    data_offsets: [u64; 2],
}

/// Returns all bytes before the data.
///
/// # Panics
/// When there are so many boxes that the format's limit is exceeded, or two have the same key.
pub(crate) fn header(metadata: &BTreeMap<&str, String>, boxes: &[BoxEntry]) -> Vec<u8> {
    let mut entries = BTreeMap::new();
    for entry in boxes {
        let TensorBox { dtype, extent, .. } = &entry.tensor;
        let value = Entry { dtype: *dtype, shape: extent, data_offsets: entry.range };
        let duplicate = entries.insert(key(&entry.tensor), value);
        assert!(duplicate.is_none(), "{} given twice", key(&entry.tensor));
    }
    let metadata = serde_json::to_string(metadata).expect("strings serialize");
    let entries = serde_json::to_string(&entries).expect("plain structs serialize");
    let separator = if boxes.is_empty() { "" } else { "," };
    let mut json = format!("{{\"__metadata__\":{metadata}{separator}{}", &entries[1..]);
    let padded = (8 + json.len()).next_multiple_of(ALIGN_BYTES) - 8;
    json.extend(std::iter::repeat_n(' ', padded - json.len()));
    assert!(json.len() <= HEADER_BYTES_MAX, "header of {} bytes", json.len());
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()
}

fn key(tensor: &TensorBox) -> String {
    if tensor.is_whole() {
        return tensor.name.clone();
    }
    let slices = tensor.offset.iter().zip(&tensor.extent);
    let slices: Vec<String> = slices.map(|(at, size)| format!("{at}:{}", at + size)).collect();
    format!("{}[{}]", tensor.name, slices.join(","))
}
