//! Run, workload and format of checkpoints, and refusals of others.

use std::fs;

use checkpoint::{Dtype, Error, Identity, PartMut, SingleRank, Status, Store, TensorBox};

use crate::support::*;

#[test]
fn all_ranks_may_open_a_new_folder_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("runs/7/checkpoints");
    on_ranks(4, |_| drop(open(&root)));
    assert_eq!(files(&root), [root.join("RUN.json")]);
    let text = fs::read_to_string(root.join("RUN.json")).unwrap();
    let found: Identity = serde_json::from_str(&text).unwrap();
    assert_eq!(found, Identity::new("run-1", "workload-1"));
    assert!(Store::find(tier(&root)).unwrap().list().unwrap().is_empty());
}

#[test]
fn a_folder_of_another_run_or_workload_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path());
    for (other, key) in [("run-2 workload-1", "run"), ("run-1 workload-2", "workload")] {
        let (run, workload) = other.split_once(' ').unwrap();
        match Store::open(tier(folder.path()), &Identity::new(run, workload)).unwrap_err() {
            Error::Mismatch { what, .. } => assert_eq!(what, key),
            other => panic!("{other}"),
        }
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(Store::find(tier(empty.path())), Err(Error::NoCheckpoint { .. })));
    fs::write(folder.path().join("RUN.json"), "{\"format\":2}").unwrap();
    assert!(matches!(Store::find(tier(folder.path())), Err(Error::Damaged { .. })));
}

#[test]
fn a_checkpoint_of_another_workload_is_refused_and_not_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    save(&store, 1, 10, 1, 0);
    let foreign = Store::open(tier(other.path()), &Identity::new("run-1", "workload-2")).unwrap();
    let name = save(&foreign, 1, 20, 1, 0);
    fs::rename(other.path().join(&name), folder.path().join(&name)).unwrap();
    assert!(matches!(store.list().unwrap()[0].status, Status::Refused(_)));
    let results = on_ranks(2, |peers| resume_rank(&store, peers));
    assert!(results.iter().all(|result| matches!(result, Err(Error::Mismatch { .. }))));
}

#[test]
fn a_checkpoint_of_a_newer_format_is_refused_and_not_skipped() {
    let store = TemporaryStore::new();
    save(&store, 1, 10, 1, 0);
    let name = save(&store, 1, 20, 1, 0);
    let path = store.path().join(&name).join("MANIFEST.json");
    fs::write(&path, sealed(r#""format":3,"new":[]"#)).unwrap();
    match resume_rank(&store, &SingleRank).unwrap_err() {
        Error::UnsupportedFormat { path: found, found: 3, .. } => assert_eq!(found, path),
        other => panic!("{other}"),
    }
    save(&store, 1, 30, 1, 1);
    assert!(path.exists(), "retention does not touch what it cannot read");
}

/// Names of the first format are different: its checkpoints must not be taken for an empty folder.
#[test]
fn a_folder_of_an_older_format_is_refused_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("RUN.json");
    fs::write(&path, sealed(r#""format":1,"run":"run-1","workload":"workload-1""#)).unwrap();
    fs::create_dir(folder.path().join("s000000010-e0001-00000000")).unwrap();
    let expected = format!(
        "{}: checkpoint format 1 is older than format 2; resume with the version of yardstick that \
         wrote it, or name a new folder",
        path.display()
    );
    let identity = Identity::new("run-1", "workload-1");
    assert_eq!(Store::open(tier(folder.path()), &identity).unwrap_err().to_string(), expected);
    assert_eq!(Store::find(tier(folder.path())).unwrap_err().to_string(), expected);
    assert_eq!(checkpoint::holds_any(&*tier(folder.path())).unwrap_err().to_string(), expected);
}

/// JSON of these fields with its own digest.
fn sealed(fields: &str) -> String {
    let zeros = "0".repeat(64);
    let text = format!("{{\"digest\":\"{zeros}\",{fields}}}");
    let digest = blake3::hash(text.as_bytes()).to_hex();
    text.replace(&zeros, &digest)
}

#[test]
fn what_the_checkpoint_lacks_is_named() {
    let store = TemporaryStore::new();
    save(&store, 2, 10, 1, 0);
    let attempt = |tensor: TensorBox| {
        let mut data = vec![0; tensor.size_bytes()];
        store.resume(&mut [PartMut { tensor, data: &mut data }], &SingleRank).unwrap_err()
    };
    match attempt(TensorBox::whole("exp_avg.wte", Dtype::F32, &[57, 12])) {
        Error::Uncovered { tensor, offset, extent, .. } => {
            assert_eq!((&*tensor, offset, extent), ("exp_avg.wte", vec![0, 0], vec![57, 12]));
        }
        other => panic!("{other}"),
    }
    for (dtype, shape) in [(Dtype::F32, [58, 12]), (Dtype::U64, [57, 12])] {
        match attempt(TensorBox::whole("wte.weight", dtype, &shape)) {
            Error::Mismatch { what, .. } => assert_eq!(what, "wte.weight"),
            other => panic!("{other}"),
        }
    }
    let missing = store.restore("s000000011-a0001-00000000", &mut [], &SingleRank);
    assert!(matches!(missing, Err(Error::Io { .. })));
    let missing = store.verify("s000000011-a0001-00000000");
    assert!(matches!(missing, Err(Error::NoCheckpoint { .. })));
}
