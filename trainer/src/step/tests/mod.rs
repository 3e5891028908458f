//! Tests that sharding and overlap do not change a bit. Under sharding a rank holds only its part,
//! and forward waits only for the weights that it needs.

mod corruption;
mod digest;
mod evaluation;
mod gate;
mod health;
mod sharded;
mod traffic;
mod watched;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use collectives::{Collective, Operation, Single, Threads};
use device::{Allocator, Device};

use gate::{Gate, GateOpener};
use watched::Watched;

use super::build::engine;
use super::frozen::Lent;
use super::shard::{Owner, Shard};
use super::weights::{EngineWeights, ModelWeights};
use super::*;
use crate::checkpoints::state_map;
use crate::config::{Config, Sharded};
use crate::data::Source;
use crate::mesh::{Mesh, MeshShape, Placed};
use record::ExitCode;

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

/// The setting with which the optimizer is sharded, or is not.
fn sharding(is_sharded: bool) -> &'static str {
    if is_sharded { "parallel.sharded=optimizer" } else { "parallel.sharded=none" }
}

fn source(config: &Config) -> Source {
    let vocabulary = config.workload.model.vocabulary;
    Source::open(&config.workload.data, vocabulary, &config.data_locations()).unwrap()
}

fn trainer<'world>(config: &Config, collective: &'world dyn Collective) -> Trainer<'world> {
    let source = source(config);
    let mesh = Mesh::flat(collective, Box::leak(Box::new(Single::new())));
    Trainer::new(config, &source, &Device::Host, mesh, Injector::default()).unwrap()
}

/// Results that a rank has computed.
#[derive(Debug, PartialEq)]
struct Trained {
    /// Bits of the loss and gradient norm of each step.
    steps: Vec<[u64; 2]>,
    weights: WeightsDigest,
}

/// Returns the bits of the loss and gradient norm of the next step.
fn step_bits(trainer: &mut Trainer<'_>) -> [u64; 2] {
    let stepped = trainer.step(Requests::default).unwrap();
    [stepped.loss.to_bits(), stepped.gradient_norm.to_bits()]
}

/// Trains for three steps.
fn train(config: &Config, collective: &dyn Collective) -> Trained {
    trained_steps(config, &mut trainer(config, collective), collective.world())
}

fn trained_steps(config: &Config, trainer: &mut Trainer<'_>, world: usize) -> Trained {
    let steps: Vec<_> = (0..3).map(|_| step_bits(trainer)).collect();
    assert!(steps.iter().all(|[_, norm]| f64::from_bits(*norm) > 1e-3), "gradients are not zero");
    let layout = &trainer.state.layout;
    let owners = if config.shards_optimizer() { world } else { 1 };
    assert_eq!(trainer.state.exp_avg.len(), trainer.state.layout.len() / owners);
    assert_eq!(trainer.state.exp_avg_sq.len(), trainer.state.layout.len() / owners);
    if let ModelWeights::Bf16 { master, .. } = &trainer.state.weights {
        assert_eq!(master.len(), layout.len() / owners);
    }
    let shape = MeshShape::of(&config.settings.parallel, world).unwrap();
    let shards = if config.shards_weights() { shape.shard } else { 1 };
    assert_eq!(trainer.state.shard.stored, layout.len() / shards);
    Trained { steps, weights: trainer.weights_digest(trainer.ranks()).unwrap() }
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
fn sharding_and_overlap_do_not_change_a_bit() {
    for workload in ["smoke", "llama-smoke"] {
        for compute in ["f32", "bf16"] {
            for world in [1, 2, 4] {
                let run = |is_sharded: bool, overlaps: bool| {
                    let format = format!("precision.compute={compute}");
                    let sharded = sharding(is_sharded);
                    let overlap = format!("collectives.overlap={overlaps}");
                    let config = config(workload, &[&format, sharded, &overlap]);
                    on_ranks(world, |rank| train(&config, rank))
                };
                let whole = run(false, true);
                let sharded = run(true, true);
                let what = format!("{workload} in {compute} on {world} ranks");
                assert_eq!(whole, sharded, "{what}");
                assert_eq!(sharded, run(true, false), "{what}: without overlap");
                assert!(sharded.iter().all(|rank| *rank == sharded[0]), "{what}: all ranks agree");
            }
        }
    }
}

/// Runs a rank of the mesh that is configured.
fn on_mesh<T>(
    config: &Config,
    world: &dyn Collective,
    body: impl FnOnce(&mut Trainer<'_>) -> T,
) -> T {
    on_faulty_mesh(config, world, Injector::default(), body)
}

fn on_faulty_mesh<T>(
    config: &Config,
    world: &dyn Collective,
    injector: Injector,
    body: impl FnOnce(&mut Trainer<'_>) -> T,
) -> T {
    let shape = MeshShape::of(&config.settings.parallel, world.world()).unwrap();
    let placed = Placed::new(shape, &vec![0; world.world()]);
    let groups = placed.open(world).unwrap();
    let single = Single::new();
    let mesh = if shape.is_grid() {
        Mesh::of_groups(shape, world, &groups)
    } else {
        Mesh::line(shape, world, &single)
    };
    let source = source(config);
    body(&mut Trainer::new(config, &source, &Device::Host, mesh, injector).unwrap())
}

/// Divisions of several ranks into the dimensions `data` and `shard`.
const DIVISIONS: [[usize; 2]; 5] = [[1, 4], [2, 2], [4, 1], [2, 4], [4, 2]];

/// Returns the settings of a division.
fn division([data, shard]: [usize; 2]) -> [String; 2] {
    [("data", data), ("shard", shard)].map(|(key, ranks)| format!("parallel.{key}={ranks}"))
}

/// Checks that steps agree within a relative error.
fn assert_close(found: &Trained, expected: &Trained, tolerance: f64, case: &str) {
    for (found, expected) in found.steps.iter().zip(&expected.steps) {
        for (found, expected) in found.iter().zip(expected) {
            let [found, expected] = [*found, *expected].map(f64::from_bits);
            let error = (found / expected - 1.0).abs();
            assert!(error < tolerance, "{case}: {found}, expected {expected}");
        }
    }
}

#[test]
fn every_division_of_ranks_trains_alike() {
    divisions_train_alike("smoke", "f32", 1);
    divisions_train_alike("smoke", "bf16", 3);
    divisions_train_alike("llama-smoke", "f32", 3);
    if std::env::var_os("YARDSTICK_MATRIX").is_some() {
        divisions_train_alike("smoke", "f32", 3);
        divisions_train_alike("smoke", "bf16", 1);
        divisions_train_alike("llama-smoke", "f32", 1);
        divisions_train_alike("llama-smoke", "bf16", 1);
        divisions_train_alike("llama-smoke", "bf16", 3);
    }
}

fn divisions_train_alike(workload: &str, compute: &str, accumulation: usize) {
    const RANKS: usize = 4;
    let format = format!("precision.compute={compute}");
    let sequences = format!("batch.global_sequences={}", RANKS * accumulation);
    let tolerance = if compute == "f32" { 1e-5 } else { 5e-3 };
    // So many blocks, with padding between tensors, that windows are used by different buckets.
    let sizes: &[&str] =
        if workload == "smoke" { &["model.layers=5", "model.width=120"] } else { &[] };
    let settings = [&[&format[..], &sequences, "batch.micro_sequences=1"], sizes].concat();
    let alone = train(&config(workload, &settings), &Single::new());
    for [data, shard] in [[1, 4], [2, 2], [4, 1]] {
        let run = |sharded: &str, settings: &[&str]| {
            let division = [format!("parallel.data={data}"), format!("parallel.shard={shard}")];
            let sharded = format!("parallel.sharded={sharded}");
            let division = division.iter().chain([&sharded]).map(String::as_str);
            let all: Vec<&str> = division.chain(settings.iter().copied()).collect();
            let ranks = on_ranks(RANKS, |rank| {
                let config = config(workload, &all);
                on_mesh(&config, rank, |trainer| trained_steps(&config, trainer, RANKS))
            });
            assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{all:?}: ranks agree");
            ranks.into_iter().next().unwrap()
        };
        let case = format!("{workload}, {compute}, {data} x {shard}, {accumulation} micro-batches");
        let whole = run("none", &settings);
        assert_close(&whole, &alone, tolerance, &case);
        assert_eq!(run("optimizer", &settings), whole, "{case}: sharded optimizer");
        let gradients = run("gradients", &settings);
        if accumulation == 1 {
            assert_eq!(gradients, whole, "{case}: sharded gradients");
        } else {
            assert_close(&gradients, &whole, tolerance, &case);
        }
        assert_eq!(run("weights", &settings), gradients, "{case}: sharded weights");
        for other in
            ["collectives.overlap=false", "parallel.gather_ahead=3", "parallel.reshard=false"]
        {
            let settings = [&settings[..], &[other]].concat();
            assert_eq!(run("weights", &settings), gradients, "{case}: {other}");
        }
    }
}

#[test]
fn an_overflow_in_the_sum_is_found_by_the_rank_that_owns_it() {
    let config = config("smoke", &["parallel.sharded=optimizer"]);
    on_ranks(2, |rank| {
        let mut trainer = trainer(&config, rank);
        let (layout, plan) = placed_layout(&config, 2);
        let owner = Owner { rank: 1, world: 2, replicas: 1 };
        let shard = Shard::new(&layout, &plan, owner, Sharded::Optimizer);
        let owned = shard.pieces().nth(3).unwrap();
        trainer.gradients.windows_mut().host()[owned.flat.start + 5] = f32::INFINITY;
        trainer.scalars.clear(&*trainer.ops).unwrap();
        let vote = trainer.vote(Checks::default(), Requests::default).unwrap();
        assert_eq!(vote.reduced.squares.is_finite(), rank.rank() == 0, "one rank owns it");
        assert_eq!(trainer.non_finite_tensor().unwrap(), Some(owned.tensor), "all know");
    });
}

/// Restores the elements that a rank holds, here with numbers that are exact in bf16.
#[test]
fn restored_weights_are_gathered_before_they_are_used() {
    let number = |index: usize| (index % 251) as f32;
    for (compute, is_sharded) in [("f32", true), ("bf16", false), ("bf16", true)] {
        let format = format!("precision.compute={compute}");
        let config = config("smoke", &[&format, sharding(is_sharded)]);
        on_ranks(2, |rank| {
            let mut trainer = trainer(&config, rank);
            let fill =
                |StateBuffersMut { shard, buffers: [weights, ..], .. }: StateBuffersMut<'_>| {
                    let all = weights.elements.host();
                    for piece in shard.pieces() {
                        let held = &mut all[weights.order.of(piece)];
                        let restored = held.iter_mut().zip(piece.flat.clone());
                        restored.for_each(|(weight, index)| *weight = number(index));
                    }
                    Ok(())
                };
            trainer.fill_state(fill).unwrap();
            trainer.resume_from(Progress::default()).unwrap();
            for tensor in trainer.state.layout.tensors() {
                let range = tensor.range.clone();
                let shared: Vec<f32> = match &trainer.state.weights {
                    ModelWeights::F32(weights) => weights.stored(range.clone()).host().to_vec(),
                    ModelWeights::Bf16 { working, .. } => {
                        let weights = working.stored(range.clone()).host();
                        weights.iter().map(|weight| weight.to_f32()).collect()
                    }
                };
                assert!(shared.into_iter().eq(range.map(number)), "{}, {compute}", tensor.name);
            }
        });
    }
}

/// Compares the bytes that steps report, and whether weights are in flight after each step. The
/// gathers of a resume are in no step.
#[test]
fn gathers_count_in_the_step_that_waits_for_them() {
    for overlaps in [true, false] {
        let overlap = format!("collectives.overlap={overlaps}");
        let config = config("smoke", &["parallel.sharded=optimizer", &overlap]);
        for steps in on_ranks(2, |rank| {
            let mut trainer = trainer(&config, rank);
            trainer.resume_from(Progress::default()).unwrap();
            assert!(!trainer.state.weights.is_any_in_flight());
            let step = |_| {
                let stepped = trainer.step(Requests::default).unwrap();
                (stepped.communication.bytes, trainer.state.weights.is_any_in_flight())
            };
            (0..3).map(step).collect::<Vec<_>>()
        }) {
            let buffer = 4 * placed_layout(&config, 2).0.len() as u64;
            let first = if overlaps { buffer } else { 2 * buffer };
            assert_eq!(steps, [first, 2 * buffer, 2 * buffer].map(|bytes| (bytes, overlaps)));
        }
    }
}

/// Number of ranks, and whether the optimizer is sharded.
const WORLDS: [(usize, bool); 6] =
    [(1, false), (1, true), (2, false), (2, true), (4, false), (4, true)];

/// Checks that a sharded optimizer reduce-scatters gradients and later all-gathers weights, which
/// together move as much as an all-reduce.
#[test]
fn a_step_all_reduces_each_bucket_or_reduce_scatters_and_all_gathers_it() {
    for (world, is_sharded) in WORLDS {
        let config = config("smoke", &[sharding(is_sharded)]);
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
                sent.lock().unwrap().clear(); // initial weights are not part of a step
            }
            trainer.step(Requests::default).unwrap();
        };
        std::thread::scope(|scope| {
            group.iter().for_each(|rank| drop(scope.spawn(|| step(rank))));
            step(&first);
        });
        assert_eq!(*sent.lock().unwrap(), expected, "{world} ranks, sharded {is_sharded}");
    }
}

/// Checks that all ranks together read each gradient once for the norm, and that a weight is
/// updated by one rank under a sharded optimizer, else by all.
#[test]
fn a_profile_counts_the_bytes_of_norm_and_update() {
    for (world, is_sharded) in WORLDS {
        let config = config("smoke", &[sharding(is_sharded)]);
        let ranks = on_ranks(world, |rank| {
            let mut trainer = trainer(&config, rank);
            let read = trainer.state.shard.part_elements() as f64;
            trainer.meter.start();
            trainer.step(Requests::default).unwrap();
            let counts: Vec<_> = trainer.meter.counts().collect();
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

/// Action of a rank before it gathers one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hook {
    WaitAtGate,
    Fail,
}

/// Runs two ranks, of which rank 1 has a hook before the last all-gather of its first update, which
/// follows those of the initial weights: that of the bucket which forward needs last.
fn with_a_slow_rank<T: Send>(
    config: &Config,
    hook: Hook,
    body: impl Fn(&dyn Collective, &Arc<Gate>) -> T + Sync,
) -> [T; 2] {
    let (_, plan) = placed_layout(config, 2);
    let mut group = Threads::group(2);
    let gate = Arc::new(Gate::default());
    let gathers = AtomicUsize::new(0);
    let watch = |rank: &Threads, operation, _| {
        let is_gather = operation == Operation::AllGather;
        if is_gather && gathers.fetch_add(1, Ordering::SeqCst) + 1 == 2 * plan.buckets.len() {
            match hook {
                Hook::WaitAtGate => gate.wait(),
                Hook::Fail => rank.abandon("a simulated failure"),
            }
        }
    };
    let slow = Watched { rank: group.pop().unwrap(), watch: Box::new(watch) };
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| body(&slow, &gate));
        let first = body(&group[0], &gate);
        [first, slow.join().unwrap()]
    })
}

/// Delays rank 1's gather of the weights that forward needs last until rank 0 has received those of
/// block 0 in the next step's forward: a rank that waits for more than it needs would block.
#[test]
fn forward_starts_before_the_last_weights_have_arrived() {
    for compute in ["f32", "bf16"] {
        let precision = format!("precision.compute={compute}");
        let extra = [&precision, "parallel.sharded=optimizer", "collectives.deadline=10s"];
        let config = config("smoke", &extra);
        let (layout, plan) = placed_layout(&config, 2);
        let block = layout.segments().iter().position(|segment| segment.name == "h.0").unwrap();
        assert!(!plan.buckets[0].segments.contains(&block), "another bucket than the last one");
        let ranks = with_a_slow_rank(&config, Hook::WaitAtGate, |rank, gate| {
            let mut trainer = trainer(&config, rank);
            if rank.rank() == 0 {
                let segment = layout.segments()[block].range.clone();
                let engine =
                    engine(&config, trainer.state.layout.clone(), 1, &Allocator::host()).unwrap();
                trainer.model = Box::new(GateOpener { engine, segment, gate: gate.clone() });
            }
            let first = step_bits(&mut trainer);
            if rank.rank() == 0 {
                gate.arm();
            }
            [first, step_bits(&mut trainer), step_bits(&mut trainer)]
        });
        let plain = self::config("smoke", &[&precision]);
        let expected = on_ranks(2, |rank| train(&plain, rank).steps);
        assert!(ranks.iter().zip(expected).all(|(found, expected)| found[..] == expected[..]));
    }
}

/// Loses a rank: the other rank fails when it needs those weights, before it computes with them.
#[test]
fn losing_a_rank_between_update_and_forward_fails_the_step() {
    let config = config("smoke", &["parallel.sharded=optimizer", "collectives.deadline=2s"]);
    let [first, _] = with_a_slow_rank(&config, Hook::Fail, |rank, _| {
        let mut trainer = trainer(&config, rank);
        let outcomes = [0, 1].map(|_| trainer.step(Requests::default).err());
        (outcomes, trainer.clock.phase())
    });
    let ([None, Some(failure)], phase) = first else { panic!("{first:?}") };
    assert_eq!((failure.code, failure.rank), (ExitCode::PeerLost, Some(1)));
    assert!(failure.to_string().starts_with("all-gather of "), "{failure}");
    assert_eq!(phase, Phase::CommExposed);
}

/// Evaluates and saves right after a step that left weights in flight.
#[test]
fn evaluation_and_save_read_gathered_weights() {
    for compute in ["f32", "bf16"] {
        let run = |extra: &[&str]| {
            let precision = format!("precision.compute={compute}");
            let short = [&precision[..], "collectives.deadline=10s"];
            let config = config("smoke", &[&short[..], extra].concat());
            with_a_slow_rank(&config, Hook::WaitAtGate, |rank, gate| {
                let mut trainer = trainer(&config, rank);
                trainer.step(Requests::default).unwrap();
                gate.arm();
                gate.open();
                let held_out = config.workload.data.evaluation_sequences;
                let plan = trainer.batches.plan();
                let mut evaluation = Evaluation::new(&source(&config), held_out, plan).unwrap();
                let loss = trainer.evaluate(&mut evaluation, || false).unwrap().loss.to_bits();
                (loss, saved_elements(&trainer.state))
            })
        };
        assert!(run(&["parallel.sharded=optimizer"]) == run(&[]), "{compute}");
    }
}

/// Makes the copy take longer than the step that would change its data.
#[test]
fn a_step_changes_the_state_only_after_it_was_copied() {
    for precision in ["precision.compute=f32", "precision.compute=bf16"] {
        let world = Single::new();
        let mut trainer = trainer(&config("smoke", &[precision]), &world);
        trainer.step(Requests::default).unwrap();
        let before = saved_elements(&trainer.state);
        let ranges = state_map::saved(&trainer.saved_layout()).ranges;
        let boxes = ranges.len();
        let (lent, mut frozen) = Lent::new(trainer.state.buffers(), ranges.into(), None);
        trainer.state.lent = Some(lent);
        let copied = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(500));
            let mut copied = Vec::new();
            for index in 0..boxes {
                let start = copied.len();
                copied.resize(start + frozen.size_bytes(index), 0);
                frozen.read(index, 0, &mut copied[start..]).unwrap();
            }
            copied
        });
        trainer.step(Requests::default).unwrap();
        assert!(saved_elements(&trainer.state) != before, "the step has changed it");
        let copied = copied.join().unwrap();
        assert!(copied == bytemuck::cast_slice::<f32, u8>(&before), "{precision}");
    }
}

/// Returns the elements that a rank saves.
fn saved_elements(state: &State<'_>) -> Vec<f32> {
    let mut elements = Vec::new();
    for buffer in &state.buffers() {
        for piece in state.shard.saved() {
            elements.extend_from_slice(&buffer.elements.host()[buffer.order.of(&piece)]);
        }
    }
    elements
}

#[test]
fn losing_a_rank_fails_the_wait_for_its_weights() {
    for overlaps in [true, false] {
        let overlap = format!("collectives.overlap={overlaps}");
        let extra = ["parallel.sharded=optimizer", "collectives.deadline=1s", &overlap];
        let config = config("smoke", &extra);
        let group = Threads::group(2);
        let mut trainer = std::thread::scope(|scope| {
            scope.spawn(|| drop(trainer(&config, &group[1])));
            trainer(&config, &group[0])
        });
        let updated = trainer.update(1.0);
        assert_eq!(updated.is_ok(), overlaps, "an update waits only where nothing overlaps");
        let failure = updated.and_then(|()| trainer.synchronize_weights()).unwrap_err();
        assert_eq!((failure.code, failure.rank), (ExitCode::PeerLost, Some(1)));
    }
}
