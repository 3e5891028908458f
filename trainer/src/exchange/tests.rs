//! Sharded or not, overlapped or not, the same bits; what a rank holds is its part; and forward
//! waits for no weights that it does not need yet.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use collectives::{Collective, Threads};
use models::Weights;

use super::door::{Door, Opens};
use super::watched::Watched;
use super::*;
use crate::assemble::{engine, placed_layout};
use crate::config::Config;
use crate::data::Source;
use crate::evaluation::Evaluation;
use crate::failure::ExitCode;
use crate::inject::Injector;
use crate::optimizer::own_squares;
use crate::persist;
use crate::state::weights_digest;
use crate::step::Wish;

const SMALL: [&str; 5] = [
    "collectives.bucket_bytes=262144",
    "batch.micro_sequences=2",
    "batch.global_sequences=8",
    "batch.sequence_tokens=32",
    "schedule.warmup_steps=1",
];

fn config(workload: &str, extra: &[&str]) -> Config {
    let overrides: Vec<String> = SMALL.iter().chain(extra).map(ToString::to_string).collect();
    Config::load(workload, &overrides).unwrap()
}

fn source(config: &Config) -> Source {
    let vocabulary = config.workload.model.vocabulary;
    Source::open(&config.workload.data, vocabulary, &config.base).unwrap()
}

fn trainer<'world>(config: &Config, collective: &'world dyn Collective) -> Trainer<'world> {
    Trainer::new(config, &source(config), collective, Injector::default()).unwrap()
}

/// Bits of three steps' losses and norms, and the digest of the weights after them.
fn train(config: &Config, collective: &dyn Collective) -> (Vec<[u64; 2]>, blake3::Hash) {
    let mut trainer = trainer(config, collective);
    let step = |_| {
        let stepped = trainer.step(Wish::default()).unwrap();
        assert!(stepped.gradient_norm > 1e-3, "there is something to sum up");
        [stepped.loss.to_bits(), stepped.gradient_norm.to_bits()]
    };
    let steps = (0..3).map(step).collect();
    let owners = if config.settings.run.shard_optimizer { collective.world() } else { 1 };
    assert_eq!(trainer.state.exp_avg.len(), trainer.layout.len() / owners);
    assert_eq!(trainer.state.exp_avg_sq.len(), trainer.layout.len() / owners);
    if let Stored::Bf16 { master, .. } = &trainer.state.weights {
        assert_eq!(master.len(), trainer.layout.len() / owners);
    }
    let (layout, weights) = trainer.all_weights().unwrap();
    (steps, weights_digest(layout, weights))
}

fn on_ranks<T: Send>(world: usize, body: impl Fn(&dyn Collective) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let spawn = |rank: Threads| {
            let body = &body;
            scope.spawn(move || body(&rank))
        };
        let ranks: Vec<_> = Threads::group(world).into_iter().map(spawn).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn sharded_and_not_are_bit_identical() {
    for workload in ["smoke", "llama-smoke"] {
        for compute in ["f32", "bf16"] {
            for world in [1, 2, 4] {
                let run = |is_sharded: bool, overlaps: bool| {
                    let format = format!("precision.compute={compute}");
                    let sharded = format!("run.shard_optimizer={is_sharded}");
                    let overlap = format!("collectives.overlap={overlaps}");
                    let config = config(workload, &[&format, &sharded, &overlap]);
                    on_ranks(world, |rank| train(&config, rank))
                };
                let (whole, sharded) = (run(false, true), run(true, true));
                let what = format!("{workload} in {compute} on {world} ranks");
                assert_eq!(whole, sharded, "{what}");
                assert_eq!(sharded, run(true, false), "{what}: without overlap");
                assert!(sharded.iter().all(|rank| *rank == sharded[0]), "{what}: all ranks agree");
            }
        }
    }
}

#[test]
fn what_only_the_sum_makes_infinite_is_named_by_its_owner() {
    let config = config("smoke", &["run.shard_optimizer=true"]);
    let group = Threads::group(2);
    let named = group.iter().map(|rank| {
        let mut trainer = trainer(&config, rank);
        let owned = trainer.shard.pieces().nth(3).unwrap().clone();
        trainer.gradients[owned.flat.start + 5] = f32::INFINITY;
        let squares = own_squares(&trainer.shard, &trainer.gradients);
        assert_eq!(trainer.overflow(squares), Some(owned.tensor));
        // The same element is no other rank's business.
        let other = Shard::new((&trainer.layout, &trainer.plan), (1 - rank.rank(), 2), true);
        assert!(own_squares(&other, &trainer.gradients).is_finite());
    });
    assert_eq!(named.count(), 2);
}

/// A restore fills what a rank holds, here by numbers that bf16 has as well.
#[test]
fn what_was_restored_is_shared_before_anything_computes_with_it() {
    let number = |index: usize| (index % 251) as f32;
    for (compute, is_sharded) in [("f32", true), ("bf16", false), ("bf16", true)] {
        let format = format!("precision.compute={compute}");
        let config = config("smoke", &[&format, &format!("run.shard_optimizer={is_sharded}")]);
        on_ranks(2, |rank| {
            let mut trainer = trainer(&config, rank);
            let Trainer { shard, state, .. } = &mut trainer;
            let [(_, order, weights), ..] = state.buffers_mut();
            for piece in shard.pieces() {
                let restored = weights[order.of(piece)].iter_mut().zip(piece.flat.clone());
                restored.for_each(|(weight, index)| *weight = number(index));
            }
            trainer.share_weights().unwrap();
            for tensor in trainer.layout.tensors() {
                let range = tensor.range.clone();
                let shared: Vec<f32> = match trainer.state.weights.get(range.clone()) {
                    Weights::F32(weights) => weights.to_vec(),
                    Weights::Bf16(weights) => {
                        weights.iter().map(|weight| weight.to_f32()).collect()
                    }
                };
                assert!(shared.into_iter().eq(range.map(number)), "{}, {compute}", tensor.name);
            }
        });
    }
}

/// Bytes that steps tell of, and whether weights are under way after each. What a resume shares is
/// in no step.
#[test]
fn weights_count_in_the_step_that_waits_for_them() {
    for overlaps in [true, false] {
        let overlap = format!("collectives.overlap={overlaps}");
        let config = config("smoke", &["run.shard_optimizer=true", &overlap]);
        for steps in on_ranks(2, |rank| {
            let mut trainer = trainer(&config, rank);
            trainer.share_weights().unwrap();
            assert!(!trainer.state.weights.is_under_way(&(0..trainer.shard.len)));
            let step = |_| {
                let stepped = trainer.step(Wish::default()).unwrap();
                let is_under_way = trainer.state.weights.is_under_way(&(0..trainer.shard.len));
                (stepped.communication.bytes, is_under_way)
            };
            (0..3).map(step).collect::<Vec<_>>()
        }) {
            let buffer = 4 * placed_layout(&config, 2).0.len() as u64;
            let first = if overlaps { buffer } else { 2 * buffer };
            assert_eq!(steps, [first, 2 * buffer, 2 * buffer].map(|bytes| (bytes, overlaps)));
        }
    }
}

/// Ranks, and whether they are sharded.
const WORLDS: [(usize, bool); 6] =
    [(1, false), (1, true), (2, false), (2, true), (4, false), (4, true)];

/// Where it is sharded, a rank gets the sums of its part alone and later the weights of the others:
/// together what an all-reduce moves, where all of the sums would be half as much again.
#[test]
fn a_step_sends_each_bucket_once_and_where_it_is_sharded_in_two_halves() {
    for (world, is_sharded) in WORLDS {
        let config = config("smoke", &[&format!("run.shard_optimizer={is_sharded}")]);
        let (_, plan) = placed_layout(&config, world);
        let bytes: Vec<_> = plan.buckets.iter().map(|bucket| 4 * bucket.range.len()).collect();
        let all = |operation| bytes.iter().map(move |&bytes| (operation, bytes));
        let expected: Vec<_> = if is_sharded {
            let weights = all(Operation::AllGather).rev(); // as forward needs them
            all(Operation::ReduceScatterSum).chain(weights).collect()
        } else {
            all(Operation::AllReduceSum).collect()
        };
        let sent = Mutex::new(Vec::new());
        let mut group = Threads::group(world);
        let watch = |_: &Threads, operation, bytes| sent.lock().unwrap().push((operation, bytes));
        let first = Watched { rank: group.remove(0), watch: Box::new(watch) };
        let step = |rank: &dyn Collective| {
            let mut trainer = trainer(&config, rank);
            if rank.rank() == 0 {
                sent.lock().unwrap().clear(); // the first weights are in no step
            }
            trainer.step(Wish::default()).unwrap();
        };
        std::thread::scope(|scope| {
            group.iter().for_each(|rank| drop(scope.spawn(|| step(rank))));
            step(&first);
        });
        assert_eq!(*sent.lock().unwrap(), expected, "{world} ranks, sharded {is_sharded}");
    }
}

/// All ranks together read each gradient once for the norm, also where each has all of them; and
/// one of them updates a weight, or all do.
#[test]
fn what_a_profile_counts_is_what_a_rank_reads_and_writes() {
    for (world, is_sharded) in WORLDS {
        let config = config("smoke", &[&format!("run.shard_optimizer={is_sharded}")]);
        let ranks = on_ranks(world, |rank| {
            let mut trainer = trainer(&config, rank);
            let ones = vec![1.0; trainer.layout.len()];
            let read = own_squares(&trainer.shard, &ones);
            trainer.optimizer.meter.start();
            trainer.step(Wish::default()).unwrap();
            let counts: Vec<_> = trainer.optimizer.meter.counts().collect();
            let [(norm, read_once), (adamw, updated)] = counts[..] else { panic!("{counts:?}") };
            assert_eq!([norm.0, adamw.0], [Role::GradientNorm, Role::AdamW]);
            assert_eq!(read_once.work.bytes, 4.0 * read, "{world} ranks, sharded {is_sharded}");
            [read_once, updated].map(|count| count.work.bytes as usize)
        });
        let [read, updated] = [0, 1].map(|op| ranks.iter().map(|rank| rank[op]).sum::<usize>());
        let (layout, _) = placed_layout(&config, world);
        assert_eq!(read, 4 * layout.len(), "{world} ranks, sharded {is_sharded}");
        let updates = if is_sharded { 1 } else { world };
        assert_eq!(updated, updates * 28 * layout.parameters(), "{world} ranks, {is_sharded}");
    }
}

/// What a rank does instead of sending one bucket at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instead {
    Wait,
    Leave,
}

/// Rank 0 as it is, and rank 1 in a thread of its own: what of its first update forward needs last
/// does not go out at once.
fn with_a_slow_rank<T: Send>(
    config: &Config,
    instead: Instead,
    body: impl Fn(&dyn Collective, &Arc<Door>) -> T + Sync,
) -> [T; 2] {
    let (_, plan) = placed_layout(config, 2);
    let mut group = Threads::group(2);
    let (door, gathers) = (Arc::new(Door::default()), AtomicUsize::new(0));
    let watch = |rank: &Threads, operation, _| {
        let is_gather = operation == Operation::AllGather;
        if is_gather && gathers.fetch_add(1, Ordering::SeqCst) + 1 == plan.buckets.len() {
            match instead {
                Instead::Wait => door.pass(),
                Instead::Leave => rank.abandon("its power failed"),
            }
        }
    };
    let slow = Watched { rank: group.pop().unwrap(), watch: Box::new(watch) };
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| body(&slow, &door));
        let first = body(&group[0], &door);
        [first, slow.join().unwrap()]
    })
}

/// Rank 1 sends the weights that forward needs last only after rank 0 has been given those of block
/// 0 in the forward of the next step: who waits for more than it needs waits for ever.
#[test]
fn forward_begins_before_the_last_weights_have_come() {
    for compute in ["f32", "bf16"] {
        let precision = format!("precision.compute={compute}");
        let extra = [&precision, "run.shard_optimizer=true", "collectives.deadline_s=10"];
        let config = config("smoke", &extra);
        let (layout, plan) = placed_layout(&config, 2);
        let block = layout.segments().iter().position(|segment| segment.name == "h.0").unwrap();
        assert!(!plan.buckets[0].segments.contains(&block), "another bucket than the last one");
        let ranks = with_a_slow_rank(&config, Instead::Wait, |rank, door| {
            let mut trainer = trainer(&config, rank);
            if rank.rank() == 0 {
                let segment = layout.segments()[block].range.clone();
                let engine = engine(&config, &trainer.layout, 2).unwrap();
                trainer.model = Box::new(Opens { engine, segment, door: door.clone() });
            }
            let step = |trainer: &mut Trainer<'_>| {
                let stepped = trainer.step(Wish::default()).unwrap();
                [stepped.loss.to_bits(), stepped.gradient_norm.to_bits()]
            };
            let first = step(&mut trainer);
            if rank.rank() == 0 {
                door.unlock();
            }
            [first, step(&mut trainer), step(&mut trainer)]
        });
        let plain = self::config("smoke", &[&precision]);
        let expected = on_ranks(2, |rank| train(&plain, rank).0);
        assert!(ranks.iter().zip(expected).all(|(found, expected)| found[..] == expected[..]));
    }
}

/// The others learn it where they need its weights, before they compute with them.
#[test]
fn a_rank_that_is_lost_between_update_and_forward_ends_the_step() {
    let config = config("smoke", &["run.shard_optimizer=true", "collectives.deadline_s=0.5"]);
    let [first, _] = with_a_slow_rank(&config, Instead::Leave, |rank, _| {
        let mut trainer = trainer(&config, rank);
        let outcomes = [0, 1].map(|_| trainer.step(Wish::default()).err());
        (outcomes, trainer.clock.phase())
    });
    let ([None, Some(failure)], phase) = first else { panic!("{first:?}") };
    assert_eq!((failure.code, failure.rank), (ExitCode::PeerLost, Some(1)));
    assert!(failure.to_string().starts_with("all-gather of "), "{failure}");
    assert_eq!(phase, Phase::CommExposed);
}

/// What is saved and what is evaluated right after a step that left weights under way.
#[test]
fn who_reads_weights_after_a_step_sees_what_was_gathered() {
    for compute in ["f32", "bf16"] {
        let run = |extra: &[&str]| {
            let precision = format!("precision.compute={compute}");
            let short = [&precision[..], "collectives.deadline_s=10"];
            let config = config("smoke", &[&short[..], extra].concat());
            with_a_slow_rank(&config, Instead::Wait, |rank, door| {
                let mut trainer = trainer(&config, rank);
                trainer.step(Wish::default()).unwrap();
                door.unlock();
                door.open();
                let held_out = config.workload.data.evaluation_sequences;
                let plan = &trainer.batch_plan;
                let mut evaluation = Evaluation::new(&source(&config), held_out, plan).unwrap();
                let loss = evaluation.loss(&mut trainer).unwrap().to_bits();
                let saved = persist::saved(&trainer.state, &trainer.layout, &trainer.shard);
                let bytes = saved.iter().map(|part| part.data.to_vec()).collect::<Vec<_>>();
                (loss, bytes)
            })
        };
        assert!(run(&["run.shard_optimizer=true"]) == run(&[]), "{compute}");
    }
}

#[test]
fn a_rank_that_is_lost_ends_the_wait_for_its_weights() {
    for overlaps in [true, false] {
        let overlap = format!("collectives.overlap={overlaps}");
        let extra = ["run.shard_optimizer=true", "collectives.deadline_s=0.2", &overlap];
        let config = config("smoke", &extra);
        let group = Threads::group(2);
        let mut trainer = trainer(&config, &group[0]);
        let updated = trainer.update(1.0, 1e-3);
        assert_eq!(updated.is_ok(), overlaps, "an update waits only where nothing overlaps");
        let failure = updated.and_then(|()| trainer.settle()).unwrap_err();
        assert_eq!((failure.code, failure.rank), (ExitCode::PeerLost, Some(1)));
    }
}
