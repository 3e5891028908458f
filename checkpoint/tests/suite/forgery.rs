//! Forged files with valid digests: each counts as damage, and nothing outside of a tier changes.

use std::fs;
use std::path::Path;

use checkpoint::{Error, SingleRank};
use serde_json::{Value, json};

use crate::support::*;

/// The fields of a sealed file.
fn unseal(path: &Path) -> Value {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    value.as_object_mut().unwrap().remove("digest");
    value
}

/// Writes fields with their digest, and returns that.
fn seal(path: &Path, value: &Value) -> String {
    let zeros = "0".repeat(64);
    let body = value.to_string();
    let text = format!("{{\"digest\":\"{zeros}\",{}\n", &body[1..]);
    let digest = blake3::hash(text.as_bytes()).to_hex().to_string();
    fs::write(path, text.replacen(&zeros, &digest, 1)).unwrap();
    digest
}

/// Changes the manifest and rank 1's index of a checkpoint, each sealed again.
fn forge(checkpoint: &Path, forgery: &Forgery) {
    let index_path = checkpoint.join("d00/r00001.idx.json");
    let manifest_path = checkpoint.join("MANIFEST.json");
    let (mut index, mut manifest) = (unseal(&index_path), unseal(&manifest_path));
    (forgery.forge)(&mut index, &mut manifest);
    manifest["ranks"][1]["index"] = seal(&index_path, &index).into();
    seal(&manifest_path, &manifest);
}

struct Forgery {
    what: &'static str,
    forge: fn(&mut Value, &mut Value),
}

const FORGERIES: [Forgery; 11] = [
    Forgery {
        what: "a file outside",
        forge: |index, _| index["files"][0]["file"] = OUTSIDE.into(),
    },
    Forgery { what: "an absolute file", forge: |index, _| index["files"][0]["file"] = "/x".into() },
    Forgery { what: "another rank", forge: |index, _| index["rank"] = 0.into() },
    Forgery { what: "another run", forge: |index, _| index["run"] = "run-2".into() },
    Forgery { what: "no chunks", forge: |index, _| index["files"][0]["chunk_bytes"] = 0.into() },
    Forgery { what: "a step", forge: |_, manifest| manifest["step"] = 19.into() },
    Forgery { what: "an attempt", forge: |_, manifest| manifest["attempt"] = u64::MAX.into() },
    Forgery { what: "a parent outside", forge: |_, manifest| manifest["parent"] = OUTSIDE.into() },
    Forgery { what: "a world", forge: |_, manifest| manifest["world"] = 1_000_000.into() },
    Forgery { what: "the range of another rank", forge: shift },
    Forgery { what: "another shape", forge: |index, _| shared_box(index)["shape"][0] = 99.into() },
];

const OUTSIDE: &str = "../../../authorized_keys";

/// Returns a box of a tensor that another rank has boxes of, too.
fn shared_box(index: &mut Value) -> &mut Value {
    let files = index["files"].as_array_mut().unwrap().iter_mut();
    let mut boxes = files.flat_map(|file| file["boxes"].as_array_mut().unwrap());
    boxes.find(|entry| entry["offset"][0].as_u64().unwrap_or(0) > 0).unwrap()
}

/// Moves a box of several rows, so that it covers a row of another one and leaves one out.
fn shift(index: &mut Value, _: &mut Value) {
    let files = index["files"].as_array_mut().unwrap().iter_mut();
    let boxes = files.flat_map(|file| file["boxes"].as_array_mut().unwrap());
    for entry in boxes {
        let rows = entry["offset"][0].as_u64().unwrap_or(0);
        let is_matrix = entry["shape"].as_array().unwrap().len() == 2;
        if is_matrix && rows > 0 && entry["extent"][1] == entry["shape"][1] {
            entry["offset"][0] = json!(rows - 1);
            return;
        }
    }
    panic!("no box to shift");
}

#[test]
fn a_forged_file_is_damage_and_the_older_checkpoint_is_restored() {
    for forgery in &FORGERIES {
        let what = forgery.what;
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        save(&store, 2, 10, 1, 0);
        let new = save(&store, 2, 20, 1, 0);
        forge(&folder.path().join(&new), forgery);
        let problems = store.verify(&new).unwrap().problems;
        assert!(matches!(problems[..], [Error::Damaged { .. }, ..]), "{what}: {problems:?}");
        let resumed = resume(&store, 2);
        assert_eq!(resumed.step, 10, "{what}");
        assert_eq!(resumed.rejected[0].checkpoint, new, "{what}");
    }
}

#[test]
fn a_forgery_of_nothing_is_restored() {
    let store = TemporaryStore::new();
    let name = save(&store, 2, 10, 1, 0);
    let nothing = Forgery { what: "nothing", forge: |_, _| {} };
    forge(&store.path().join(name), &nothing);
    assert_eq!(resume(&store, 2).step, 10);
}

#[test]
fn a_number_that_no_attempt_has_is_ignored() {
    let store = TemporaryStore::new();
    save(&store, 1, 10, 3, 1);
    let foreign = ["ATTEMPT-18446744073709551615", "ATTEMPT-4294967296"];
    foreign.iter().for_each(|name| fs::write(store.path().join(name), "x").unwrap());
    fs::create_dir(store.path().join("s000000020-a18446744073709551615-00000001")).unwrap();
    fs::create_dir(store.path().join("s18446744073709551615-a0009-00000001")).unwrap();
    assert_eq!(store.claim_attempt(1, &SingleRank).unwrap().attempt, 4);
    let found = store.foreign_claims().unwrap();
    assert_eq!(found, [foreign[0], foreign[1]].map(|name| store.path().join(name)));
    save(&store, 1, 20, 4, 1);
    assert!(foreign.iter().all(|name| store.path().join(name).exists()), "not ours to remove");
}

#[test]
fn after_the_last_number_no_attempt_can_start() {
    let store = TemporaryStore::new();
    let last = store.path().join("ATTEMPT-4294967295");
    fs::write(&last, "x").unwrap();
    for result in on_ranks(2, |peers| store.claim_attempt(1, peers)) {
        match result.unwrap_err() {
            Error::AttemptsExhausted { path, .. } => assert_eq!(path, last),
            Error::OtherRanksFailed { failures, .. } => {
                assert!(failures[0].reason.contains("ATTEMPT-4294967295"), "{failures:?}");
            }
            other => panic!("{other}"),
        }
    }
    // It fences, as every number does.
    for result in on_ranks(2, |peers| {
        let plan = Plan { step: 20, attempt: 1, keep: 1 };
        save_rank(&store, plan, peers, &checkpoint::NoFailpoints)
    }) {
        assert!(matches!(result, Err(Error::Fenced { .. })), "{result:?}");
    }
}
