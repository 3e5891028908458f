//! Repeated reads: damaged ones are repeated before anything is rejected, and files that are not
//! visible are waited for together.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{Error, Restored, SingleRank, Status, Store};

use crate::faulty::{self, Damage, Faults};
use crate::support::*;

const FILES: [&str; 3] = ["MANIFEST.json", "r00001.idx.json", "r00001-000.safetensors"];

/// A folder with the checkpoints of steps 10 and 20.
struct Saved {
    folder: tempfile::TempDir,
    store: Store,
    new: String,
}

impl Saved {
    fn new(world: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        save(&store, world, 10, 1, 0);
        let new = save(&store, world, 20, 1, 0);
        Self { folder, store, new }
    }

    fn with(&self, faults: &Arc<Faults>) -> Store {
        faulty::open(self.folder.path(), faults)
    }

    fn status(&self) -> Status {
        self.store.list().unwrap()[0].status.clone()
    }
}

/// Restores on each of two ranks, all bytes checked.
fn resume_both(store: &Store) -> Vec<Restored> {
    let restored = on_ranks(2, |peers| resume_rank(store, peers));
    restored.into_iter().map(|restored| restored.unwrap().unwrap()).collect()
}

#[test]
fn a_restore_repeats_a_read_that_arrived_damaged() {
    for (file, damage) in FILES.into_iter().flat_map(|file| Damage::ALL.map(|it| (file, it))) {
        let saved = Saved::new(2);
        let key = format!("{}/d00/{file}", saved.new).replace("/d00/MANIFEST", "/MANIFEST");
        let faults = Faults::new(&key, damage, 1);
        let restored = resume_both(&saved.with(&faults));
        assert_eq!(faults.left(), 0, "{file} {damage:?}");
        assert_eq!((restored[0].step, restored[0].rejected.len()), (20, 0), "{file} {damage:?}");
        let [warning] = &restored[0].warnings[..] else { panic!("{:?}", restored[0].warnings) };
        let names_it = warning.contains(&key) && warning.contains("rank ");
        assert!(names_it && warning.contains("read 2 was right"), "{warning}");
        assert_eq!(restored[1].warnings, restored[0].warnings);
        assert!(matches!(saved.status(), Status::Committed { .. }), "{file} {damage:?}");
    }
}

#[test]
fn a_verification_reads_three_times() {
    for (file, damage) in FILES.into_iter().flat_map(|file| Damage::ALL.map(|it| (file, it))) {
        let saved = Saved::new(2);
        let report = saved.with(&Faults::new(file, damage, 2)).verify(&saved.new).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        let [warning] = &report.warnings[..] else { panic!("{:?}", report.warnings) };
        assert!(warning.contains(file) && warning.contains("read 3 was right"), "{warning}");

        let report = saved.with(&Faults::new(file, damage, usize::MAX)).verify(&saved.new).unwrap();
        let problem = report.problems[0].to_string();
        assert!(problem.contains(file) && problem.contains("(3 reads)"), "{problem}");
        assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    }
}

#[test]
fn the_range_that_was_read_is_named() {
    let saved = Saved::new(2);
    for damage in Damage::ALL {
        let faults = Faults::new(FILES[2], damage, usize::MAX);
        let store = saved.with(&faults);
        let mut data = model(0);
        let error = store.restore(&saved.new, &mut whole_parts(&mut data), &SingleRank);
        let Error::Damaged { offset, expected, found, .. } = error.unwrap_err() else { panic!() };
        assert!(expected.starts_with("CRC64/NVME ") && expected.ends_with("over 4096 bytes"));
        assert!(offset == 0 && found.ends_with("(3 reads)"), "{offset} {found}");
    }
}

#[test]
fn a_rejected_copy_that_reads_well_later_counts_again() {
    for damage in Damage::ALL {
        let saved = Saved::new(2);
        let ill =
            saved.with(&Faults::new(&format!("{}/d00/{}", saved.new, FILES[2]), damage, 99_999));
        let restored = resume_both(&ill);
        assert_eq!((restored[0].step, &restored[0].rejected[0].checkpoint), (10, &saved.new));
        assert_eq!(saved.status(), Status::Rejected);

        let report = saved.store.verify(&saved.new).unwrap();
        assert!(report.is_rejected && report.problems.is_empty(), "{report:?}");
        saved.store.reinstate(&saved.new).unwrap();
        assert!(matches!(saved.status(), Status::Committed { .. }));
        let again = saved.store.reinstate(&saved.new);
        assert!(matches!(again, Err(Error::NoCheckpoint { .. })), "{again:?}");
        assert_eq!(resume(&saved.store, 2).step, 20);
    }
}

/// Checks that a rejection keeps the manifest's bytes, also when they are read badly at that
/// moment.
#[test]
fn a_manifest_is_renamed_as_it_was_written() {
    let saved = Saved::new(2);
    let manifest = saved.folder.path().join(&saved.new).join("MANIFEST.json");
    let written = fs::read(&manifest).unwrap();
    let shard = saved.folder.path().join(&saved.new).join("d00").join(FILES[2]);
    fs::write(&shard, vec![0; fs::metadata(&shard).unwrap().len() as usize]).unwrap();
    // The survey reads it before the rejection does.
    let file = format!("{}/MANIFEST.json", saved.new);
    let faults = Faults::after(1, &file, Damage::FlippedBit, 1);
    let store = saved.with(&faults);
    assert_eq!(resume_rank(&store, &SingleRank).unwrap().unwrap().step, 10);
    assert_eq!(faults.left(), 0);
    let rejected = manifest.with_file_name("MANIFEST.rejected");
    assert!(fs::read(rejected).unwrap() == written);
}

fn remove_all(folder: &Path, is_lost: impl Fn(&str) -> bool) {
    for path in files(folder) {
        if is_lost(path.to_str().unwrap()) {
            fs::remove_file(path).unwrap();
        }
    }
}

/// Tries to read absent files while the newest checkpoint, of 40 ranks, lost files.
fn absent_reads(lose: impl Fn(&Path)) -> usize {
    let saved = Saved::new(40);
    lose(&saved.folder.path().join(&saved.new));
    let faults = Faults::none();
    let store = saved.with(&faults);
    let before = faults.absent();
    assert_eq!(resume_rank(&store, &SingleRank).unwrap().unwrap().step, 10);
    faults.absent() - before
}

/// Counts reads: a file that is waited for is read about four times in 100 ms.
#[test]
fn absent_files_are_waited_for_together() {
    let of_indexes = absent_reads(|folder| remove_all(folder, |path| path.ends_with(".idx.json")));
    assert!((40..60).contains(&of_indexes), "{of_indexes} reads of 40 indexes");
}

#[test]
fn of_folders_that_are_lost_one_index_is_waited_for() {
    let reads = absent_reads(|folder| {
        for number in 5..20 {
            fs::remove_dir_all(folder.join(format!("d{number:02}"))).unwrap();
        }
    });
    assert!((1..10).contains(&reads), "{reads} reads of 30 indexes without a folder");
}
