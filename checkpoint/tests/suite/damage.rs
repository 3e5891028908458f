//! Detection of every kind of damage before a byte is used; an older checkpoint takes over.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use checkpoint::{
    Dtype, Error, NoFailpoints, Options, Part, PartMut, SingleRank, Status, TensorBox,
};
use rustix::fs::{CWD, FileType, mknodat};
use serde_json::Value;

use crate::faulty;
use crate::support::*;

/// A checkpoint to damage, and an older one of the same layout.
struct Pair {
    new: PathBuf,
    old: PathBuf,
}

fn shard(folder: &Path) -> PathBuf {
    folder.join("d00/r00001-000.safetensors")
}

fn index(folder: &Path) -> PathBuf {
    folder.join("d00/r00001.idx.json")
}

fn manifest(folder: &Path) -> PathBuf {
    folder.join("MANIFEST.json")
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn cut(path: &Path, bytes: u64) {
    fs::File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

fn flip(path: &Path, offset: u64) {
    let byte = fs::read(path).unwrap()[offset as usize];
    overwrite(path, offset, &[byte ^ 0x10]);
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap();
}

/// Nobody writes to it: whoever opens it without care waits for ever.
fn make_fifo(path: &Path) {
    fs::remove_file(path).unwrap();
    mknodat(CWD, path, FileType::Fifo, 0o600.into(), 0).unwrap();
}

/// The file is elsewhere, whole, and a link to it has its name.
fn make_link(path: &Path) {
    let moved = path.with_extension("moved");
    fs::rename(path, &moved).unwrap();
    symlink(&moved, path).unwrap();
}

/// Larger than the memory of the machine may be, without taking any disk.
fn make_huge(path: &Path) {
    cut(path, 3 << 30);
}

type Case = (&'static str, fn(&Pair));

const CASES: [Case; 32] = [
    ("shard cut by a byte", |p| cut(&shard(&p.new), size(&shard(&p.new)) - 1)),
    ("shard cut to its header", |p| cut(&shard(&p.new), 4096)),
    ("shard empty", |p| cut(&shard(&p.new), 0)),
    ("shard longer", |p| cut(&shard(&p.new), size(&shard(&p.new)) + 1)),
    ("shard gone", |p| fs::remove_file(shard(&p.new)).unwrap()),
    ("tail of zeros", |p| overwrite(&shard(&p.new), size(&shard(&p.new)) - 64, &[0; 64])),
    ("middle of zeros", |p| overwrite(&shard(&p.new), 4096 + 200, &[0; 128])),
    ("all data zeros", |p| {
        let bytes = size(&shard(&p.new));
        cut(&shard(&p.new), 4096);
        cut(&shard(&p.new), bytes);
    }),
    ("piece written twice", |p| {
        let bytes = fs::read(shard(&p.new)).unwrap();
        overwrite(&shard(&p.new), 4096 + 300, &bytes[4096..4096 + 300]);
    }),
    ("bit in the first chunk", |p| flip(&shard(&p.new), 4096)),
    ("bit in the last byte", |p| flip(&shard(&p.new), size(&shard(&p.new)) - 1)),
    ("bit in the header", |p| flip(&shard(&p.new), 20)),
    ("bit in the header's length", |p| flip(&shard(&p.new), 1)),
    ("bit in the header's padding", |p| flip(&shard(&p.new), 4095)),
    ("stale shard of the same length", |p| copy(&shard(&p.old), &shard(&p.new))),
    ("bit in the index", |p| flip(&index(&p.new), size(&index(&p.new)) / 2)),
    ("index cut", |p| cut(&index(&p.new), size(&index(&p.new)) / 2)),
    ("index gone", |p| fs::remove_file(index(&p.new)).unwrap()),
    ("stale index", |p| copy(&index(&p.old), &index(&p.new))),
    ("all files of a rank stale", |p| {
        for path in files(&p.old.join("d00")) {
            let name = path.file_name().unwrap();
            if name.to_str().unwrap().starts_with("r00001") {
                copy(&path, &p.new.join("d00").join(name));
            }
        }
    }),
    ("bit in the manifest", |p| flip(&manifest(&p.new), 100)),
    ("manifest cut", |p| cut(&manifest(&p.new), size(&manifest(&p.new)) / 2)),
    ("manifest empty", |p| cut(&manifest(&p.new), 0)),
    ("manifest of another checkpoint", |p| copy(&manifest(&p.old), &manifest(&p.new))),
    ("shard a FIFO", |p| make_fifo(&shard(&p.new))),
    ("shard a link", |p| make_link(&shard(&p.new))),
    ("index a FIFO", |p| make_fifo(&index(&p.new))),
    ("index a link", |p| make_link(&index(&p.new))),
    ("index of 3 GiB", |p| make_huge(&index(&p.new))),
    ("manifest a FIFO", |p| make_fifo(&manifest(&p.new))),
    ("manifest a link", |p| make_link(&manifest(&p.new))),
    ("manifest of 3 GiB", |p| make_huge(&manifest(&p.new))),
];

#[test]
fn every_damage_is_found_and_the_older_checkpoint_restored() {
    for (case, damage) in CASES {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let old = save(&store, 2, 10, 1, 0);
        let new = save(&store, 2, 20, 1, 0);
        damage(&Pair { new: folder.path().join(&new), old: folder.path().join(&old) });

        let mut data = model(0);
        let restored = on_ranks(2, |peers| {
            let mut data = model(0);
            store.restore(&new, &mut whole_parts(&mut data), peers).map(|_| ())
        });
        assert!(restored.iter().all(Result::is_err), "{case}: {restored:?}");
        let damaged = |error: &Error| matches!(error, Error::Damaged { .. } | Error::Io { .. });
        let own = |result: &Result<(), Error>| result.as_ref().is_err_and(damaged);
        assert!(restored.iter().any(own), "{case}: {restored:?}");
        assert!(!store.verify(&new).unwrap().problems.is_empty(), "{case}");
        assert!(store.verify(&old).unwrap().problems.is_empty(), "{case}");

        let resumed = resume(&store, 2);
        assert_eq!(resumed.step, 10, "{case}");
        assert_eq!(resumed.rejected.len(), 1, "{case}");
        assert_eq!(resumed.rejected[0].checkpoint, new, "{case}");
        assert!(store.restore(&old, &mut whole_parts(&mut data), &SingleRank).is_ok(), "{case}");
    }
}

#[test]
fn any_flipped_bit_anywhere_is_found() {
    let store = TemporaryStore::new();
    let name = save(&store, 2, 10, 1, 0);
    let files = files(&store.path().join(&name));
    let mut random = 12_345_u64;
    for round in 0..300 {
        let path = &files[round % files.len()];
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let offset = (random >> 20) % size(path);
        flip(path, offset);
        let report = store.verify(&name).unwrap();
        assert!(!report.problems.is_empty(), "{} byte {offset}", path.display());
        flip(path, offset);
    }
    assert!(store.verify(&name).unwrap().problems.is_empty());
}

#[test]
fn no_byte_of_a_damaged_chunk_reaches_the_caller() {
    let store = TemporaryStore::new();
    let tensor = TensorBox::whole("w", Dtype::U8, &[150]);
    let parts = [Part { tensor: tensor.clone(), data: &[7; 150] }];
    let request = request(1, 1, Value::Null);
    let name = store.save(&request, &parts, &SingleRank, &NoFailpoints).unwrap().checkpoint;
    let path = store.path().join(&name).join("d00/r00000-000.safetensors");
    flip(&path, 4096 + 149);
    let mut data = [0; 150];
    let error = store.restore(&name, &mut [PartMut { tensor, data: &mut data }], &SingleRank);
    match error.unwrap_err() {
        Error::Damaged { path: found, offset, .. } => assert_eq!((found, offset), (path, 4196)),
        other => panic!("{other}"),
    }
    assert_eq!((&data[..100], &data[100..]), (&[7; 100][..], &[0; 50][..]));
}

#[test]
fn when_all_are_damaged_that_is_an_error() {
    let store = TemporaryStore::new();
    for step in [10, 20] {
        let name = save(&store, 2, step, 1, 0);
        flip(&shard(&store.path().join(name)), 5000);
    }
    for _ in 0..2 {
        for result in on_ranks(2, |peers| resume_rank(&store, peers)) {
            match result.unwrap_err() {
                Error::NoCheckpoint { rejected, .. } => assert_eq!(rejected.len(), 2),
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_failure_that_may_pass_does_not_make_a_resume_fall_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    save(&store, 2, 10, 1, 0);
    let new = folder.path().join(save(&store, 2, 20, 1, 0));
    for path in [shard(&new), index(&new), manifest(&new)] {
        let key = path.strip_prefix(folder.path()).unwrap().to_str().unwrap();
        let store = faulty::open_without(folder.path(), key);
        let results = on_ranks(2, |peers| resume_rank(&store, peers));
        let is_io = |result: &Result<_, Error>| matches!(result, Err(Error::Io { .. }));
        assert!(results.iter().any(is_io), "{results:?}");
        for result in &results {
            let is_elsewhere = matches!(result, Err(Error::OtherRanksFailed { .. }));
            assert!(is_elsewhere || is_io(result), "{result:?}");
        }
    }
    let resumed = resume(&store, 2);
    assert_eq!((resumed.step, resumed.rejected.len()), (20, 0));
}

#[test]
fn a_checkpoint_without_manifest_does_not_count() {
    let store = TemporaryStore::new();
    let old = save(&store, 2, 10, 1, 0);
    let new = save(&store, 2, 20, 1, 0);
    fs::remove_file(manifest(&store.path().join(&new))).unwrap();
    let resumed = resume(&store, 2);
    assert_eq!((resumed.checkpoint, resumed.rejected), (old.clone(), Vec::new()));
    let listed = store.list().unwrap();
    assert_eq!((&listed[0].name, &listed[0].status), (&new, &Status::Uncommitted));
    assert!(matches!(listed[1].status, Status::Committed { world: 2, .. }));
    fs::remove_file(manifest(&store.path().join(&old))).unwrap();
    assert!(resume_rank(&store, &SingleRank).unwrap().is_none(), "nothing was ever committed");
}

#[test]
fn a_renamed_checkpoint_is_not_taken_for_a_newer_one() {
    let store = TemporaryStore::new();
    let old = save(&store, 2, 10, 1, 0);
    save(&store, 2, 20, 1, 0);
    let claimed = "s000000030-a0001-00000000";
    fs::rename(store.path().join(old), store.path().join(claimed)).unwrap();
    assert!(matches!(store.list().unwrap()[0].status, Status::Damaged(_)));
    let resumed = resume(&store, 2);
    assert_eq!((resumed.step, &*resumed.rejected[0].checkpoint), (20, claimed));
}

#[test]
fn latest_is_only_a_hint() {
    let store = TemporaryStore::new();
    let old = save(&store, 1, 10, 1, 0);
    let new = save(&store, 1, 20, 1, 0);
    let latest = store.path().join("LATEST");
    assert_eq!(fs::read_to_string(&latest).unwrap(), format!("{new}\n"));
    for content in [format!("{old}\n"), "\u{0}\u{0}".to_owned(), String::new()] {
        fs::write(&latest, content).unwrap();
        assert_eq!(resume(&store, 1).step, 20);
    }
    fs::remove_file(&latest).unwrap();
    assert_eq!(resume(&store, 1).step, 20);
}

#[test]
fn a_file_that_is_not_visible_yet_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    save(&store, 2, 10, 1, 0);
    let new = save(&store, 2, 20, 1, 0);
    let visibility_timeout = Duration::from_secs(60);
    let store = store.with_options(Options { visibility_timeout, ..SMALL });
    for file in ["d00/r00001.idx.json", "d00/r00001-000.safetensors"] {
        let path = folder.path().join(&new).join(file);
        let away = folder.path().join("away");
        fs::rename(&path, &away).unwrap();
        let appears = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            fs::rename(away, path).unwrap();
        });
        let resumed = resume(&store, 2);
        assert_eq!((resumed.step, resumed.rejected), (20, Vec::new()), "{file}");
        appears.join().unwrap();
    }
}
