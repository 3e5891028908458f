//! Failing calls of a save, of the removal of old checkpoints, or of a restore: the save fails too,
//! or it works, and committed checkpoints stay. The next save works and removes what is left.

use checkpoint::{Error, NoFailpoints, Status, Store};
use fuser::Errno;

use crate::faults::{Effect, Fault, Operation};
use crate::mount::Mounted;
use crate::ranks::{Plan, names, on_ranks, open, resume, resume_rank, save, save_rank};

/// Errors of disks, quotas and kernels, and their texts.
const ERRORS: [(Errno, &str); 4] = [
    (Errno::ENOSPC, "No space left on device"),
    (Errno::EIO, "Input/output error"),
    (Errno::EROFS, "Read-only file system"),
    (Errno::EDQUOT, "Disk quota exceeded"),
];

/// Faults of one call, or of all from there on.
const FAULTS: [fn(usize, Effect) -> Fault; 2] = [
    |number, effect| Fault::Change { number, effect },
    |number, effect| Fault::FromChange { number, effect },
];

/// Calls `case` with every number of a change, until its fault concerns none.
fn for_every_change(mut case: impl FnMut(&Mounted, &Store, usize, Fault, &str) -> Option<String>) {
    let mounted = Mounted::new();
    for (kind, fault) in FAULTS.into_iter().enumerate() {
        for number in 0.. {
            let (errno, text) = ERRORS[number % ERRORS.len()];
            let root = mounted.join(&format!("{kind}-{number}"));
            let fault = fault(number, Effect::Error(errno));
            if case(&mounted, &open(&root), number, fault, text).is_none() {
                assert!(number > 20, "only {number} changes");
                break;
            }
        }
    }
}

/// Returns whether all that is left is committed.
fn is_clean(store: &Store) -> bool {
    let is_committed = |status: &Status| matches!(status, Status::Committed { .. });
    store.list().unwrap().iter().all(|listed| is_committed(&listed.status))
}

#[test]
#[ignore = "needs /dev/fuse and root"]
fn any_call_of_a_save_may_fail() {
    for_every_change(|mounted, store, number, fault, text| {
        save(store, 2, 10, 1, 0);
        mounted.set(Some(fault));
        let plan = Plan { step: 20, attempt: 1, keep: 0 };
        let saved = on_ranks(2, |peers| save_rank(store, plan, peers, &NoFailpoints));
        let hit = mounted.last_hit();
        mounted.set(None);
        let case = format!("{fault:?}: {hit:?}, {saved:?}");

        let is_saved = saved[0].is_ok();
        for result in &saved {
            match result {
                Ok(_) => assert!(is_saved, "{case}"),
                Err(Error::SaveFailed { step: 20, failures }) => {
                    assert!(!is_saved, "{case}");
                    let root = mounted.path().to_str().unwrap();
                    let is_named = |reason: &str| reason.contains(text) && reason.contains(root);
                    assert!(failures.iter().any(|it| is_named(&it.reason)), "{case}");
                }
                Err(_) => panic!("{case}"),
            }
        }
        let resumed = resume(store, 2);
        assert!(resumed.rejected.is_empty(), "{case}");
        // The manifest may be there although it could be neither synced nor removed again.
        let may_be_there = matches!(fault, Fault::FromChange { .. });
        let expected: &[u64] = match (is_saved, may_be_there) {
            (true, _) => &[20],
            (false, true) => &[10, 20],
            (false, false) => &[10],
        };
        assert!(expected.contains(&resumed.step), "{case}: resumed {}", resumed.step);

        let next = save(store, 2, 30, 1, 2);
        assert_eq!((resume(store, 2).checkpoint, is_clean(store)), (next, true), "{case}");
        assert_eq!(names(store).len(), 2, "{case}: {number}");
        hit
    });
}

#[test]
#[ignore = "needs /dev/fuse and root"]
fn any_call_of_retention_may_fail() {
    for_every_change(|mounted, store, _, fault, _| {
        for step in [10, 20] {
            save(store, 2, step, 1, 0);
        }
        let newest = save(store, 2, 30, 1, 0);
        mounted.set(Some(fault));
        let report = store.apply_retention(1, 1, &NoFailpoints);
        let hit = mounted.last_hit();
        mounted.set(None);
        let case = format!("{fault:?}: {hit:?}, {report:?}");
        let resumed = resume(store, 2);
        assert_eq!((&resumed.checkpoint, resumed.rejected.len()), (&newest, 0), "{case}");
        let report = store.apply_retention(1, 1, &NoFailpoints);
        assert!(report.warnings.is_empty(), "{case}: {report:?}");
        assert_eq!(names(store), [newest], "{case}");
        hit
    });
}

/// A server that does not answer is no reason to return to an older step, and a disk that can read
/// no copy at all is none to give up any.
#[test]
#[ignore = "needs /dev/fuse and root"]
fn a_restore_that_cannot_read_is_refused_and_gives_up_nothing() {
    let mounted = Mounted::new();
    for (operation, name) in [
        (Operation::List, ""),
        (Operation::Open, "MANIFEST.json"),
        (Operation::Read, "r00001.idx.json"),
        (Operation::Read, "r00001-000.safetensors"),
    ] {
        for errno in [Errno::ETIMEDOUT, Errno::EIO] {
            let store = open(&mounted.join(&format!("{operation:?}-{name}-{}", errno.code())));
            save(&store, 2, 10, 1, 0);
            save(&store, 2, 20, 1, 0);
            mounted.set(Some(Fault::Named { operation, name, effect: Effect::Error(errno) }));
            let results = on_ranks(2, |peers| resume_rank(&store, peers));
            let hit = mounted.last_hit();
            mounted.set(None);
            let case = format!("{errno:?}, {hit:?}: {results:?}");
            assert!(hit.is_some() && results.iter().all(Result::is_err), "{case}");
            let is_expected = |result: &Result<_, Error>| match result {
                Err(Error::Io { .. }) => errno == Errno::ETIMEDOUT || operation == Operation::List,
                Err(Error::NoCheckpoint { rejected, .. }) => rejected.len() == 2,
                _ => false,
            };
            assert!(results.iter().any(is_expected), "{case}");
            let resumed = resume(&store, 2);
            assert_eq!((resumed.step, resumed.rejected.len()), (20, 0), "{case}");
        }
    }
}
