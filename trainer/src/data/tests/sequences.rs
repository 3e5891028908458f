//! Tests that the order of sequences is complete, disjoint, equal at any world size, and resumable.

use std::{collections::BTreeSet, sync::Arc};

use device::Allocator;

use super::*;
use crate::data::prefetch::Buffers;
use crate::data::synthetic::Synthetic;
use crate::data::{BatchPlan, Locations, Prefetcher, Sequences, Source};

const T: usize = 4;

/// Returns two files of 0..90 and 90..203 as one stream: 50 windows of T = 4.
fn source(evaluation_sequences: usize) -> (TempDir, Source) {
    let folder = folder();
    write(&folder, "a.bin", &raw(0..90));
    write(&folder, "b.bin", &llmc(20_240_520, 1, 113, &raw(90..203)));
    let config = config(&["a.bin", "b.bin"], &[], evaluation_sequences);
    let source = Source::open(&config, 1000, &Locations::new(folder.path())).unwrap();
    (folder, source)
}

fn start(sequences: Arc<dyn Sequences>, plan: BatchPlan, cursor: u64) -> Prefetcher {
    let buffers = Buffers::allocate(&plan, &Allocator::host());
    Prefetcher::start(sequences, plan, cursor, buffers).unwrap()
}

#[test]
fn an_epoch_has_every_training_window_once() {
    let (_folder, source) = source(5);
    let training = source.training(T).unwrap();
    assert_eq!(training.sequences_per_epoch(), Some(45));
    let firsts = |epoch: u64| -> Vec<u32> {
        (epoch * 45..(epoch + 1) * 45)
            .map(|index| {
                let (inputs, targets) = sequence(&*training, index, T);
                let first = inputs[0];
                assert_eq!(inputs, [first, first + 1, first + 2, first + 3]);
                assert_eq!(targets, [first + 1, first + 2, first + 3, first + 4]);
                first
            })
            .collect()
    };
    let first = firsts(0);
    let second = firsts(1);
    assert_ne!(first, second, "each epoch has its own order");
    let windows: BTreeSet<u32> = (0..45).map(|window| window * T as u32).collect();
    assert_eq!(first.into_iter().collect::<BTreeSet<_>>(), windows);
    assert_eq!(second.into_iter().collect::<BTreeSet<_>>(), windows);
}

#[test]
fn held_out_sequences_are_the_last_ones() {
    let (_folder, source) = source(5);
    let evaluation = source.evaluation(T).unwrap();
    assert_eq!(evaluation.sequences_per_epoch(), Some(5));
    let firsts: Vec<_> = (0..6).map(|index| sequence(&*evaluation, index, T).0[0]).collect();
    assert_eq!(firsts, [180, 184, 188, 192, 196, 180]);
}

#[test]
fn with_evaluation_files_training_uses_all_windows() {
    let folder = folder();
    write(&folder, "a.bin", &raw(0..41));
    write(&folder, "e.bin", &raw(500..541));
    let config = config(&["a.bin"], &["e.bin"], 3);
    let source = Source::open(&config, 1000, &Locations::new(folder.path())).unwrap();
    assert_eq!(source.training(T).unwrap().sequences_per_epoch(), Some(10));
    let evaluation = source.evaluation(T).unwrap();
    assert_eq!(sequence(&*evaluation, 2, T).0, [508, 509, 510, 511]);
}

fn plan(rank: usize, world: usize, accumulation: usize) -> BatchPlan {
    let micro_sequences = 8 / world / accumulation;
    BatchPlan {
        rank,
        world,
        micro_sequences,
        sequence_tokens: T,
        global_sequences: 8,
        accumulation,
    }
}

#[test]
fn ranks_divide_each_step_at_any_world_size() {
    for (world, accumulation) in [(1, 1), (1, 4), (2, 2), (4, 1), (4, 2)] {
        for step in [0, 1, 5, 1 << 40] {
            let mut seen = Vec::new();
            for rank in 0..world {
                let plan = plan(rank, world, accumulation);
                for micro_batch in 0..accumulation {
                    let first = plan.first_sequence(step * 8, micro_batch);
                    seen.extend(first..first + plan.micro_sequences as u64);
                }
            }
            assert!(seen.into_iter().eq(step * 8..(step + 1) * 8), "world {world}, step {step}");
        }
    }
}

#[test]
fn a_prefetcher_gives_the_same_sequences_from_any_step() {
    let (_folder, source) = source(5);
    let training = source.training(T).unwrap();
    for first_step in [0, 3, 17] {
        let plan = plan(1, 2, 2);
        let cursor = |step: u64| step * plan.global_sequences as u64;
        let mut prefetcher = start(Arc::clone(&training), plan, cursor(first_step));
        for step in first_step..first_step + 10 {
            for micro_batch in 0..2 {
                let batch = prefetcher.next();
                let first = plan.first_sequence(cursor(step), micro_batch);
                let rows = batch.inputs().chunks(T).zip(batch.targets().chunks(T));
                for (index, (inputs, targets)) in (first..first + 2).zip(rows) {
                    let direct = sequence(&*training, index, T);
                    assert_eq!((inputs, targets), (&direct.0[..], &direct.1[..]));
                }
            }
        }
    }
}

#[test]
fn an_idle_prefetcher_stops_when_dropped() {
    let sequences = Arc::new(Synthetic::training(1, 256));
    let weak = Arc::downgrade(&sequences);
    drop(start(sequences, plan(0, 1, 1), 0));
    assert!(weak.upgrade().is_none(), "the thread still holds the sequences");
}

#[test]
#[should_panic(expected = "the data thread has stopped")]
fn a_panic_of_the_data_thread_reaches_the_caller() {
    let (_folder, source) = source(5);
    let mut wrong = plan(0, 1, 1);
    wrong.sequence_tokens = T + 1; // windows have T
    start(source.training(T).unwrap(), wrong, 0).next();
}

#[test]
fn the_digest_depends_on_content_and_order() {
    let folder = folder();
    write(&folder, "a.bin", &raw(0..50));
    write(&folder, "b.bin", &raw(50..100));
    write(&folder, "copy.bin", &raw(0..50));
    let of = |files: &[&str], evaluation: &[&str]| {
        let config = config(files, evaluation, 2);
        Source::open(&config, usize::MAX, &Locations::new(folder.path()))
            .unwrap()
            .digest()
            .unwrap()
            .to_owned()
    };
    let plain = of(&["a.bin", "b.bin"], &[]);
    assert_eq!(plain.len(), 64);
    assert_eq!(plain, of(&["copy.bin", "b.bin"], &[]), "names are not hashed");
    assert_ne!(plain, of(&["b.bin", "a.bin"], &[]));
    assert_ne!(plain, of(&["a.bin"], &["b.bin"]), "held-out files are not training files");
    let mut synthetic = config(&[], &[], 2);
    synthetic.source = DataSource::Synthetic;
    let source = Source::open(&synthetic, usize::MAX, &Locations::new(folder.path())).unwrap();
    assert_eq!(source.digest(), None);
}
