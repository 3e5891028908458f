//! Digests inside JSON files: a file that was damaged or edited after it was written is refused.
//!
//! `digest` is the BLAKE3 digest of everything else in the file, whatever its white space and the
//! order of its keys. A file without one, as from an older version, is read without a check.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::error::Error;

/// Computes the digest of a value, without its own `digest` field.
///
/// # Panics
/// When the value cannot be serialized, which plain data always can.
pub fn digest(value: &impl Serialize) -> String {
    // Digest the text that is read back: numbers of other precisions become what the text says.
    let bytes = serde_json::to_vec(value).expect("plain data in memory");
    let value: Value = serde_json::from_slice(&bytes).expect("what was just written");
    digest_of(value)
}

fn digest_of(mut value: Value) -> String {
    if let Some(fields) = value.as_object_mut() {
        fields.remove(FIELD);
    }
    let text = value.to_string();
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

const FIELD: &str = "digest";

/// Compares the digest in the content of the file at `path` with the rest of it.
///
/// # Errors
/// [`Error::Changed`] when they do not match.
pub fn check(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let value: Value = crate::json::parse(path, bytes, "JSON")?;
    let Some(expected) = value.get(FIELD).filter(|expected| !expected.is_null()) else {
        return Ok(());
    };
    if *expected == Value::String(digest_of(value.clone())) {
        return Ok(());
    }
    Err(Error::Changed { path: path.to_owned() })
}
