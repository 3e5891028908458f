//! JSON that carries its own digest.
//!
//! The text starts with `{"digest":"<64 hexadecimal digits>",`; the digest is the BLAKE3 of the
//! whole file with those digits replaced by zeros. So every byte is covered, no canonical form of
//! JSON is needed, and there is no second file that could be out of date. Every format, past or
//! future, has this digest and a field `format`, which distinguishes a file of another format from
//! a torn one.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::FORMAT;
use super::digest::Digest;
use crate::error::{Error, Result};

const OPENING: &[u8] = b"{\"digest\":\"";
const DIGITS: std::ops::Range<usize> = OPENING.len()..OPENING.len() + 64;

/// Serializes a struct (of at least one field) with its digest.
///
/// # Panics
/// When the value does not serialize to a non-empty object.
pub(crate) fn seal<T: Serialize>(value: &T) -> (Vec<u8>, Digest) {
    let body = serde_json::to_string(value).expect("structs with string keys serialize");
    assert!(body.starts_with("{\""), "a non-empty object");
    let zeros = "0".repeat(DIGITS.len());
    let mut text = [OPENING, zeros.as_bytes(), b"\",", &body.as_bytes()[1..], b"\n"].concat();
    let digest = Digest::of(&text);
    text[DIGITS].copy_from_slice(digest.0.as_bytes());
    (text, digest)
}

/// Checks the digest and the format, and returns the value.
pub(crate) fn unseal<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<(T, Digest)> {
    let digest = verify_digest(path, bytes)?;
    let parsed = |error: serde_json::Error| Error::damaged(path, 0, "JSON of this format", error);
    let found: Version = serde_json::from_slice(bytes).map_err(parsed)?;
    if found.format != u64::from(FORMAT) {
        let path = path.to_owned();
        return Err(Error::UnsupportedFormat { path, found: found.format, supported: FORMAT });
    }
    let value = serde_json::from_slice(bytes).map_err(parsed)?;
    Ok((value, digest))
}

#[derive(serde::Deserialize)]
struct Version {
    format: u64,
}

fn verify_digest(path: &Path, bytes: &[u8]) -> Result<Digest> {
    if !bytes.starts_with(OPENING) || bytes.len() < DIGITS.end {
        let found = format!("{} bytes that start differently", bytes.len());
        return Err(Error::damaged(path, 0, "JSON that starts with its digest", found));
    }
    let mut text = bytes.to_vec();
    text[DIGITS].fill(b'0');
    let actual = Digest::of(&text);
    let claimed = &bytes[DIGITS];
    if claimed != actual.0.as_bytes() {
        let claimed = String::from_utf8_lossy(claimed);
        return Err(Error::damaged(path, 0, format!("digest {claimed}"), actual));
    }
    Ok(actual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    struct Note {
        format: u32,
        text: String,
    }

    fn note(format: u32) -> (Vec<u8>, Digest) {
        seal(&Note { format, text: "state".to_owned() })
    }

    #[test]
    fn round_trip_is_plain_json() {
        let (bytes, digest) = note(FORMAT);
        let (value, found) = unseal::<Note>(Path::new("x"), &bytes).unwrap();
        assert_eq!((value.text.as_str(), found), ("state", digest.clone()));
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["digest"], digest.0);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let (bytes, _) = note(FORMAT);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut torn = bytes.clone();
                torn[at] ^= 1 << bit;
                let result = unseal::<Note>(Path::new("x"), &torn);
                assert!(matches!(result, Err(Error::Damaged { .. })), "byte {at} bit {bit}");
            }
            let result = unseal::<Note>(Path::new("x"), &bytes[..at]);
            assert!(matches!(result, Err(Error::Damaged { .. })), "cut at {at}");
        }
    }

    #[test]
    fn another_format_is_not_damage() {
        for other in [FORMAT - 1, FORMAT + 1] {
            let (bytes, _) = note(other);
            match unseal::<Note>(Path::new("x"), &bytes) {
                Err(Error::UnsupportedFormat { found, .. }) => assert_eq!(found, u64::from(other)),
                result => panic!("{result:?}"),
            }
        }
    }
}
