//! Retention: removals, and above all the checkpoints that stay.

use std::fs;
use std::path::Path;

use checkpoint::{Error, NoFailpoints, RemovalReason, Status, Store};

use crate::support::*;

fn steps(store: &Store) -> Vec<u64> {
    store.list().unwrap().iter().map(|listed| listed.step).collect()
}

fn remove_a_shard(root: &Path, name: &str) {
    fs::remove_file(root.join(name).join("d00/r00001-000.safetensors")).unwrap();
}

#[test]
fn the_newest_committed_stay() {
    let store = TemporaryStore::new();
    for step in 1..=5 {
        save(&store, 2, step, 1, 2);
    }
    assert_eq!(steps(&store), [5, 4]);
    let held = store.newest().unwrap().unwrap().name;
    assert!(store.holds(&held).unwrap() && store.holds("5").is_err());
    save(&store, 2, 6, 1, 0);
    assert_eq!(steps(&store), [6, 5, 4], "0 keeps all");
    let plan = Plan { step: 7, attempt: 1, keep: 1 };
    let saved = on_ranks(2, |peers| save_rank(&store, plan, peers, &NoFailpoints).unwrap());
    let removed = saved.iter().map(|saved| saved.retention.removed.len());
    assert_eq!(removed.collect::<Vec<_>>(), [3, 0]);
    assert_eq!(steps(&store), [7]);
    assert!(!store.holds(&held).unwrap(), "it was removed");
}

#[test]
fn damaged_ones_do_not_count_as_kept() {
    let store = TemporaryStore::new();
    let saved: Vec<String> = (1..=4).map(|step| save(&store, 2, step, 1, 0)).collect();
    remove_a_shard(store.path(), &saved[3]);
    fs::write(store.path().join(&saved[2]).join("MANIFEST.json"), "{").unwrap();
    let plan = Plan { step: 5, attempt: 1, keep: 2 };
    let reports = on_ranks(2, |peers| save_rank(&store, plan, peers, &NoFailpoints).unwrap());
    let report = &reports[0].retention;
    assert_eq!(report.removed, saved[..1], "5 and 2 are intact, 4 and 3 do not count");
    assert!(report.warnings[0].contains("r00001-000.safetensors"), "{report:?}");
    assert_eq!(steps(&store), [5, 4, 3, 2]);
    save(&store, 2, 6, 1, 2);
    assert_eq!(steps(&store), [6, 5], "damaged ones are removed when they are old");
}

#[test]
fn what_is_not_ours_is_never_touched() {
    let store = TemporaryStore::new();
    let foreign =
        [".s000000001-a0001-00000000", "s000000001-a0001-0000000g", "12500", "lost+found"];
    for name in foreign {
        fs::create_dir(store.path().join(name)).unwrap();
        fs::write(store.path().join(name).join("MANIFEST.json"), "{").unwrap();
    }
    fs::write(store.path().join("s000000001-a0001-00000000"), "a file").unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("precious"), "x").unwrap();
    let link = store.path().join("s000000001-a0001-00000001");
    std::os::unix::fs::symlink(outside.path(), &link).unwrap();
    for step in 1..=3 {
        save(&store, 2, step, 2, 1);
    }
    assert_eq!(steps(&store), [3]);
    assert!(foreign.iter().all(|name| store.path().join(name).join("MANIFEST.json").exists()));
    assert!(store.path().join("s000000001-a0001-00000000").exists());
    assert!(link.exists() && outside.path().join("precious").exists());
}

#[test]
fn leftovers_of_earlier_attempts_are_removed() {
    let store = TemporaryStore::new();
    let good = save(&store, 2, 10, 1, 0);
    let dead = ["s000000020-a0001-00000001", "s000000030-a0002-00000002"];
    for name in dead {
        fs::create_dir_all(store.path().join(name).join("d00")).unwrap();
        fs::write(store.path().join(name).join("d00/r00000-000.safetensors.tmp"), "x").unwrap();
    }
    let half_removed = store.path().join("s000000005-a0001-00000003");
    fs::create_dir(&half_removed).unwrap();
    fs::write(half_removed.join("MANIFEST.deleted"), "x").unwrap();
    assert!(store.list().unwrap().iter().any(|listed| listed.status == Status::Deleted));
    let new = save(&store, 2, 40, 2, 0);
    let expected = [new, dead[1].to_owned(), good];
    assert_eq!(names(&store), expected, "a save of this attempt may be in flight");
}

#[test]
fn a_later_attempt_is_newer_than_a_later_step() {
    let store = TemporaryStore::new();
    save(&store, 1, 20, 1, 0);
    let name = save(&store, 1, 15, 2, 0);
    assert_eq!(resume(&store, 2).checkpoint, name);
    assert_eq!(store.newest().unwrap().unwrap().name, name);
}

#[test]
fn a_zombie_is_fenced() {
    let store = TemporaryStore::new();
    let name = save(&store, 2, 20, 2, 0);
    for result in on_ranks(2, |peers| {
        save_rank(&store, Plan { step: 90, attempt: 1, keep: 1 }, peers, &NoFailpoints)
    }) {
        assert!(matches!(result, Err(Error::Fenced { .. })), "{result:?}");
    }
    assert_eq!(names(&store), [name]);
}

/// Two checkpoints, of which a resume has rejected the newer one.
struct Fallback {
    store: Store,
    good: String,
    bad: String,
}

/// A good step 100 and a step 200 with a wrong byte, which a resume passes over.
fn fall_back(root: &Path) -> Fallback {
    let store = open(root);
    let good = save(&store, 2, 100, 1, 2);
    let bad = save(&store, 2, 200, 1, 2);
    let shard = root.join(&bad).join("d00/r00001-000.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let resumed = resume(&store, 2);
    assert_eq!((&resumed.checkpoint, resumed.rejected.len()), (&good, 1));
    Fallback { store, good, bad }
}

#[test]
fn what_a_resume_rejected_does_not_count_as_kept() {
    let folder = tempfile::tempdir().unwrap();
    let Fallback { store, good, bad } = fall_back(folder.path());
    let new = save(&store, 2, 150, 2, 2);
    assert_eq!(names(&store), [new.clone(), bad, good]);
    let is_rejected = |listed: &checkpoint::Listed| listed.status == Status::Rejected;
    assert!(is_rejected(&store.list().unwrap()[1]));
    let newer = save(&store, 2, 160, 2, 2);
    assert_eq!(names(&store), [newer, new], "it is removed when it is old");
}

#[test]
fn a_folder_holds_what_was_committed_and_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let holds_any = || checkpoint::holds_any(&*tier(folder.path())).unwrap();
    assert!(!checkpoint::holds_any(&*tier(&folder.path().join("none"))).unwrap());
    let Fallback { good, bad, .. } = fall_back(folder.path());
    assert!(holds_any());
    fs::remove_dir_all(folder.path().join(&good)).unwrap();
    assert!(holds_any(), "what was rejected is not ignored");
    fs::write(folder.path().join(&bad).join("MANIFEST.deleted"), "").unwrap();
    assert!(!holds_any(), "its removal has begun");
}

#[test]
fn what_a_resume_rejected_is_not_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let Fallback { store, good, bad } = fall_back(folder.path());
    assert_eq!(store.newest().unwrap().unwrap().name, good);
    let resumed = resume(&store, 2);
    assert_eq!((&resumed.checkpoint, resumed.rejected.len()), (&good, 0));
    fs::remove_dir_all(folder.path().join(&good)).unwrap();
    let lost = resume_rank(&store, &checkpoint::SingleRank);
    assert!(matches!(lost, Err(Error::NoCheckpoint { .. })), "it never starts over: {lost:?}");
    save(&store, 2, 100, 1, 0);
    let manifest = |name| folder.path().join(&bad).join(name);
    fs::rename(manifest("MANIFEST.rejected"), manifest("MANIFEST.json")).unwrap();
    assert_eq!(resume(&store, 2).rejected[0].checkpoint, bad, "renamed back, it counts again");
}

#[test]
fn a_removal_that_was_killed_before_the_manifest_was_gone_is_completed() {
    let store = TemporaryStore::new();
    let good = save(&store, 2, 10, 1, 0);
    let old = save(&store, 2, 20, 1, 0);
    let manifest = |name| store.path().join(&old).join(name);
    fs::copy(manifest("MANIFEST.json"), manifest("MANIFEST.deleted")).unwrap();
    assert_eq!(store.list().unwrap()[0].status, Status::Deleted);
    assert!(!store.holds(&old).unwrap());
    assert_eq!(resume(&store, 2).checkpoint, good);
    let new = save(&store, 2, 30, 1, 0);
    assert_eq!(names(&store), [new, good]);
}

#[test]
fn a_rejection_that_was_killed_before_the_manifest_was_gone_is_done_again() {
    let folder = tempfile::tempdir().unwrap();
    let Fallback { store, good, bad } = fall_back(folder.path());
    let manifest = |name| folder.path().join(&bad).join(name);
    fs::copy(manifest("MANIFEST.rejected"), manifest("MANIFEST.json")).unwrap();
    assert!(matches!(store.list().unwrap()[0].status, Status::Committed { .. }));
    let resumed = resume(&store, 2);
    assert_eq!((resumed.checkpoint, &*resumed.rejected[0].checkpoint), (good, &*bad));
    assert_eq!(store.list().unwrap()[0].status, Status::Rejected);
    assert!(!manifest("MANIFEST.json").exists());
}

#[test]
fn temporary_files_in_the_root_are_removed() {
    let store = TemporaryStore::new();
    let foreign = ["LATEST.bak", "notes.tmp"];
    let stale = ["LATEST.tmp", "RUN.0a0a0a0a.tmp", "ATTEMPT-0001.0a0a0a0a.tmp", "ATTEMPT-0001"];
    for name in foreign.iter().chain(&stale) {
        fs::write(store.path().join(name), "x").unwrap();
    }
    save(&store, 2, 10, 2, 1);
    let mut left: Vec<_> = fs::read_dir(store.path()).unwrap().collect::<Result<_, _>>().unwrap();
    left.retain(|entry| entry.file_type().unwrap().is_file());
    let mut left: Vec<_> = left.iter().map(|entry| entry.file_name()).collect();
    left.sort();
    assert_eq!(left, ["LATEST", "LATEST.bak", "RUN.json", "notes.tmp"]);
}

#[test]
fn what_is_pinned_stays_and_does_not_count() {
    let store = TemporaryStore::new();
    let first = save(&store, 2, 1, 1, 0);
    store.pin(&first).unwrap();
    store.pin(&first).unwrap();
    assert!(store.presence(&first).unwrap().is_pinned);
    let second = save(&store, 2, 2, 1, 2);
    store.pin(&second).unwrap();
    for step in 3..=5 {
        save(&store, 2, step, 1, 2);
    }
    assert_eq!(steps(&store), [5, 4, 2, 1]);
    assert_eq!(store.verify(&first).unwrap().problems.len(), 0);
    store.unpin(&first).unwrap();
    store.unpin(&first).unwrap();
    save(&store, 2, 6, 2, 1);
    assert_eq!(steps(&store), [6, 2], "also in a later attempt");
}

#[test]
fn only_what_is_committed_is_pinned() {
    let store = TemporaryStore::new();
    let name = save(&store, 2, 1, 1, 0);
    let other = "s000000009-a0001-00000001";
    for absent in ["latest", other] {
        assert!(matches!(store.pin(absent), Err(Error::NoCheckpoint { .. })), "{absent}");
        assert!(matches!(store.unpin(absent), Err(Error::NoCheckpoint { .. })), "{absent}");
    }
    fs::create_dir(store.path().join(other)).unwrap();
    assert!(matches!(store.pin(other), Err(Error::NoCheckpoint { .. })));
    let manifest = |file: &str| store.path().join(&name).join(file);
    fs::copy(manifest("MANIFEST.json"), manifest("MANIFEST.deleted")).unwrap();
    assert!(matches!(store.pin(&name), Err(Error::NoCheckpoint { .. })), "it is being removed");
    assert!(!manifest("PINNED").exists());
}

/// Pins the checkpoint between the two looks of a removal that was killed then.
#[test]
fn a_removal_that_was_killed_as_the_checkpoint_was_pinned_is_undone() {
    let store = TemporaryStore::new();
    let pinned = save(&store, 2, 1, 1, 0);
    let manifest = |file: &str| store.path().join(&pinned).join(file);
    fs::copy(manifest("MANIFEST.json"), manifest("MANIFEST.deleted")).unwrap();
    fs::write(manifest("PINNED"), "").unwrap();
    assert_eq!(store.list().unwrap()[0].status, Status::Deleted);
    save(&store, 2, 2, 1, 1);
    assert!(matches!(store.list().unwrap()[1].status, Status::Committed { .. }));
    assert_eq!(store.verify(&pinned).unwrap().problems.len(), 0);
    fs::rename(manifest("MANIFEST.json"), manifest("MANIFEST.deleted")).unwrap();
    save(&store, 2, 3, 1, 1);
    assert_eq!(steps(&store), [3], "past that moment the removal is completed");
}

#[test]
fn only_what_no_attempt_can_commit_any_more_is_planned_to_be_removed() {
    let store = TemporaryStore::new();
    let old = save(&store, 2, 10, 1, 0);
    save(&store, 2, 20, 2, 0);
    let [dead, in_flight, newest] =
        ["s000000015-a0001-00000001", "s000000015-a0002-00000002", "s000000030-a0002-00000003"];
    for name in [dead, in_flight, newest] {
        fs::create_dir(store.path().join(name)).unwrap();
    }
    let planned = |attempt, keep| {
        let planned = store.plan_retention(attempt, keep).unwrap();
        planned.into_iter().map(|removal| (removal.checkpoint, removal.reason)).collect::<Vec<_>>()
    };
    let abandoned = |name: &str| (name.to_owned(), RemovalReason::Abandoned);
    assert_eq!(planned(2, 0), [abandoned(dead)], "the newest attempt may be writing");
    assert_eq!(
        planned(3, 0),
        [abandoned(in_flight), abandoned(dead)],
        "nothing newer is committed"
    );
    assert_eq!(planned(2, 1), [abandoned(dead), (old.clone(), RemovalReason::Old)]);
    let removals = store.plan_retention(2, 1).unwrap();
    store.pin(&old).unwrap();
    let removed = removals.iter().map(|removal| store.remove_planned(removal).unwrap());
    assert_eq!(removed.collect::<Vec<_>>(), [true, false], "pinned since");
    assert_eq!(names(&store).len(), 4);
}
