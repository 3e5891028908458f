//! Comparisons of records with one damaged leaf: they never pass, unless the verdict stays the same
//! to the byte.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Comparison;
use super::side::{Side, Source};
use super::tests::{AS_USUAL, QUIET, run, settings};
use record::Random;
use record::Record;

/// Stride of the damaged entries of a list.
const STRIDE: usize = 37;

/// Collects the paths of all leaves.
fn leaves(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => fields.iter().for_each(|(key, value)| {
            leaves(value, format!("{path}/{key}"), found);
        }),
        Value::Array(values) if !values.is_empty() => {
            for (index, value) in values.iter().enumerate().step_by(STRIDE) {
                leaves(value, format!("{path}/{index}"), found);
            }
        }
        _ => found.push(path),
    }
}

/// Removes one character of a leaf, or returns another value of its kind.
fn cut(value: &Value) -> Value {
    match value {
        Value::String(text) => text.chars().skip(1).collect::<String>().into(),
        Value::Number(number) => {
            let text = number.to_string();
            serde_json::from_str(&text[..text.len() - 1]).unwrap_or(Value::from(0))
        }
        Value::Bool(value) => (!value).into(),
        _ => "x".into(),
    }
}

/// Returns four copies of a value, each damaged in another way at a path.
fn damaged(value: &Value, path: &str) -> [Value; 4] {
    let with = |leaf: Value| {
        let mut value = value.clone();
        *value.pointer_mut(path).unwrap() = leaf;
        value
    };
    let mut without = value.clone();
    let (parent, key) = path.rsplit_once('/').unwrap();
    match without.pointer_mut(parent).unwrap() {
        Value::Object(fields) => drop(fields.remove(key)),
        Value::Array(values) => drop(values.remove(key.parse().unwrap())),
        _ => unreachable!(),
    }
    let leaf = value.pointer(path).unwrap();
    [without, with(Value::Null), with("NaN".into()), with(cut(leaf))]
}

/// Builds a side of one record.
fn side(bytes: &[u8]) -> Result<Side, String> {
    let path = Path::new("record.json");
    let record = Record::parse(path, bytes).map_err(|error| error.to_string())?;
    Ok(Side::new(vec![Source { path: PathBuf::from(path), record }]))
}

/// Returns the exit code and the comparison.
fn verdict(base: &Side, new: &Side) -> Result<(u8, Vec<u8>), String> {
    let compared = Comparison::of(base, new, &settings());
    let comparison = compared.map_err(|failure| failure.to_string())?;
    Ok((comparison.exit_code, serde_json::to_vec(&comparison).unwrap()))
}

/// Builds a record with the fewest blocks of steps that suffice for a verdict.
pub(super) fn record(minute: u64) -> Record {
    let mut record = run(QUIET, AS_USUAL, minute, &mut Random(minute));
    record.steps.as_mut().unwrap().series.truncate(30);
    record
}

#[test]
fn a_damaged_leaf_never_passes() {
    let base = record(0).sealed();
    let mut new = record(200);
    new.tokens_per_second.as_mut().unwrap().step.total *= 2.0;
    let new = new.sealed();
    let whole_side = |record: &Record| side(&serde_json::to_vec(record).unwrap()).unwrap();
    let (base_side, new_side) = (whole_side(&base), whole_side(&new));
    let whole = verdict(&base_side, &new_side).unwrap();
    assert_eq!(whole.0, 0);
    let mut tried = 0;
    for (record, is_new) in [(&base, false), (&new, true)] {
        let value = serde_json::to_value(record).unwrap();
        let mut paths = Vec::new();
        leaves(&value, String::new(), &mut paths);
        for path in paths {
            for damaged in damaged(&value, &path) {
                let found = side(damaged.to_string().as_bytes()).and_then(|side| match is_new {
                    true => verdict(&base_side, &side),
                    false => verdict(&side, &new_side),
                });
                let passes = found.as_ref().is_ok_and(|found| found.0 == 0 && *found != whole);
                assert!(!passes, "{path} of {}: {found:?}", if is_new { "new" } else { "base" });
                tried += 1;
            }
        }
    }
    assert!(tried > 1000, "{tried}");
}

#[test]
fn a_record_that_was_cut_never_passes() {
    let mut noise = Random(8);
    let bytes = |minute| serde_json::to_vec_pretty(&record(minute).sealed()).unwrap();
    let new = bytes(200);
    let base = side(&bytes(0)).unwrap();
    let whole = verdict(&base, &side(&new).unwrap());
    for end in (0..new.len()).step_by(new.len() / 50) {
        assert!(side(&new[..end]).is_err(), "{end}");
        let mut flipped = new.clone();
        flipped[end] ^= 1 << (noise.below(8));
        let found = side(&flipped).and_then(|side| verdict(&base, &side));
        assert!(found.is_err() || found == whole, "{end}: {found:?}");
    }
}
