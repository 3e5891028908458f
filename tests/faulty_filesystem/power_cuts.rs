//! Power cuts in the middle of saves: checkpoints that were reported as committed can be restored,
//! whatever else the disk loses.

use checkpoint::{NoFailpoints, SingleRank};
use fuser::Errno;
use models::rng::{Purpose, Stream};

use crate::faults::{Effect, Fault};
use crate::mount::Mounted;
use crate::ranks::{Plan, on_ranks, open, resume, save, save_rank};

const CUTS: u64 = 150;

/// Returns a selection of the unsynced changes that survive: none, all, or each at random.
fn survivors(stream: Stream) -> impl FnMut() -> bool {
    let kind = stream.below(0, 4);
    let mut drawn = 0;
    move || {
        drawn += 1;
        match kind {
            0 => false,
            1 => true,
            _ => stream.below(drawn, 2) == 0,
        }
    }
}

/// Saves, and removes older checkpoints, until one fails. Returns the last committed step.
fn save_until_the_end(store: &checkpoint::Store, steps: &[u64]) -> u64 {
    let mut committed = 0;
    for &step in steps {
        let plan = Plan { step, attempt: 1, keep: 1 };
        let saved = on_ranks(2, |peers| save_rank(store, plan, peers, &NoFailpoints).is_ok());
        if !saved[0] {
            break;
        }
        committed = step;
    }
    committed
}

#[test]
#[ignore = "needs /dev/fuse and root"]
fn what_was_committed_survives_a_power_cut() {
    let mut mounted = Mounted::new();
    mounted.set(None);
    save_until_the_end(&open(&mounted.join("counted")), &[10, 20, 30]);
    let changes = mounted.changes() as u64;
    let mut fractions = [0; 4]; // of cuts after so many saves
    for seed in 0..CUTS {
        let stream = Stream::new(seed, Purpose::Fault);
        let root = mounted.join(&format!("{seed}"));
        let number = stream.child(1).below(0, changes) as usize;
        let store = open(&root);
        mounted.set(Some(Fault::FromChange { number, effect: Effect::Error(Errno::EIO) }));
        let committed = save_until_the_end(&store, &[10, 20, 30]);
        let hit = mounted.last_hit();
        mounted.cut_power(&mut survivors(stream));

        let case = format!("seed {seed}, cut at change {number}: {hit:?}");
        let store = open(&root);
        let attempt = store.claim_attempt(2, &SingleRank).unwrap().attempt;
        if committed > 0 {
            let resumed = resume(&store, 2); // and compares all bytes
            assert!(resumed.step >= committed, "{case}: {} < {committed}", resumed.step);
            assert!(resumed.rejected.is_empty(), "{case}: {resumed:?}");
        }
        fractions[committed as usize / 10] += 1;
        let next = save(&store, 2, 40, attempt, 1);
        assert_eq!(resume(&store, 1).checkpoint, next, "{case}");
    }
    assert!(fractions.iter().all(|&cuts| cuts > 10), "{fractions:?}");
}

/// Puts all that the run writes on the disk: its record and its steps, too.
#[cfg(feature = "mpi")]
#[test]
#[ignore = "needs /dev/fuse and root"]
fn a_run_goes_on_after_power_cuts() {
    let mut mounted = Mounted::new();
    let run = crate::runs::Run::new(&mounted);
    for (seed, number) in [(1, 150), (2, 220), (3, 100)] {
        mounted.set(Some(Fault::FromChange { number, effect: Effect::Error(Errno::EIO) }));
        let finished = run.train(&[]);
        let hit = mounted.last_hit();
        assert!(hit.is_some() && finished.code != 0, "{number}: {}", finished.stderr);
        mounted.cut_power(&mut survivors(Stream::new(seed, Purpose::Fault)));
    }
    run.train(&[]).expect(0);
    assert_eq!(run.result(), *crate::runs::undisturbed());
}
