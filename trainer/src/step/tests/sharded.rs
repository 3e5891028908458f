//! Tests that sharded gradients and weights are those of one rank, element by element, and move
//! from any layout of ranks to any other.

use std::ops::Range;

use device::ViewMut;
use models::{Batch, Pass, StepSink, Sums, WeightSource};

use super::super::sharded_weights::Reads;
use super::*;

/// Settings of every kind of sharding on four ranks, in one dimension and in two.
const LAYOUTS: [[&str; 3]; 6] = [
    ["parallel.data=4", "parallel.shard=1", "parallel.sharded=none"],
    ["parallel.data=1", "parallel.shard=4", "parallel.sharded=optimizer"],
    ["parallel.data=2", "parallel.shard=2", "parallel.sharded=gradients"],
    ["parallel.data=1", "parallel.shard=4", "parallel.sharded=weights"],
    ["parallel.data=2", "parallel.shard=2", "parallel.sharded=weights"],
    ["parallel.data=4", "parallel.shard=1", "parallel.sharded=weights"],
];
const RANKS: usize = 4;

/// Values of all elements, tensor by tensor, without padding.
type Elements = Vec<f32>;

/// Returns the range of a piece's elements among those of all tensors.
fn range_of(layout: &models::Layout, piece: &Piece) -> Range<usize> {
    let tensors = layout.tensors();
    let before: usize = tensors[..piece.tensor].iter().map(|tensor| tensor.range.len()).sum();
    let elements = piece.elements(&tensors[piece.tensor]);
    before + elements.start..before + elements.end
}

/// Adds the elements of a piece, which no other rank may have.
fn collect(layout: &models::Layout, piece: &Piece, values: &[f32], elements: &mut Elements) {
    elements.resize(layout.parameters(), f32::NAN);
    let own = &mut elements[range_of(layout, piece)];
    assert!(own.iter().all(|element| element.is_nan()), "one owner");
    own.copy_from_slice(values);
}

/// Returns the gradients of the first step by the ranks that own them, unclipped.
fn gradients(config: &Config, world: usize) -> Elements {
    let elements = Mutex::new(Elements::new());
    on_ranks(world, |rank| {
        on_mesh(config, rank, |trainer| {
            trainer.accumulate_gradients(MicroBatches::Own, false).unwrap();
            let Trainer { state, gradients, .. } = trainer;
            let mut elements = elements.lock().unwrap();
            for bucket in &state.shard.buckets {
                let own = gradients.own(bucket).host();
                let is_inside = |piece: &Piece| {
                    bucket.part.start <= piece.flat.start && piece.flat.end <= bucket.part.end
                };
                for piece in state.shard.saved().filter(is_inside) {
                    let start = piece.flat.start - bucket.own.start;
                    let values = &own[start..start + piece.flat.len()];
                    collect(&state.layout, &piece, values, &mut elements);
                }
            }
        });
    });
    elements.into_inner().unwrap()
}

/// A gradient of the wrong scale trains for a while as if it were right.
#[test]
fn every_gradient_is_that_of_one_rank() {
    for (workload, accumulation) in [("smoke", 3), ("llama-smoke", 1)] {
        let sequences = format!("batch.global_sequences={}", RANKS * accumulation);
        let settings = [&sequences[..], "batch.micro_sequences=1"];
        let expected = gradients(&config(workload, &settings), 1);
        let largest = expected.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
        for layout in LAYOUTS {
            let settings = [&settings[..], &layout].concat();
            let found = gradients(&config(workload, &settings), RANKS);
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let bound = 1e-4 * expected.abs() + 1e-6 * largest;
                let is_close = (found - expected).abs() <= bound;
                assert!(is_close, "{workload}, {layout:?}, {index}: {found}, not {expected}");
            }
        }
    }
}

/// State of a run by the names of checkpoints.
#[derive(Debug, Default)]
struct Saved {
    buffers: [Elements; 3],
    progress: Progress,
    digest: Option<WeightsDigest>,
    next: [u64; 2],
}

/// Trains for two steps, and returns the state then, and what the next step computes.
fn saved(config: &Config) -> Saved {
    let all = Mutex::new(Saved::default());
    on_ranks(RANKS, |rank| {
        on_mesh(config, rank, |trainer| {
            for _ in 0..2 {
                step_bits(trainer);
            }
            let digest = trainer.weights_digest(trainer.ranks()).unwrap();
            let mut all = all.lock().unwrap();
            let state = &trainer.state;
            for (buffer, elements) in state.buffers().iter().zip(&mut all.buffers) {
                for piece in state.shard.saved() {
                    let values = &buffer.elements.host()[buffer.order.of(&piece)];
                    collect(&state.layout, &piece, values, elements);
                }
            }
            all.digest = Some(digest);
            all.progress = trainer.progress();
            drop(all);
        });
    });
    let next = on_ranks(RANKS, |rank| {
        on_mesh(config, rank, |trainer| {
            for _ in 0..2 {
                step_bits(trainer);
            }
            step_bits(trainer)
        })
    });
    Saved { next: next[0], ..all.into_inner().unwrap() }
}

/// Restores a state, and returns its digest and what the next step computes.
fn restored(config: &Config, saved: &Saved) -> (WeightsDigest, [u64; 2]) {
    let found = on_ranks(RANKS, |rank| {
        on_mesh(config, rank, |trainer| {
            let fill = |state: StateBuffersMut<'_>| {
                let StateBuffersMut { shard, layout, buffers, .. } = state;
                for (buffer, elements) in buffers.into_iter().zip(&saved.buffers) {
                    let all = buffer.elements.host();
                    for piece in shard.pieces() {
                        let held = &mut all[buffer.order.of(piece)];
                        held.copy_from_slice(&elements[range_of(layout, piece)]);
                    }
                }
                Ok(())
            };
            trainer.fill_state(fill).unwrap();
            trainer.resume_from(saved.progress).unwrap();
            let digest = trainer.weights_digest(trainer.ranks()).unwrap();
            (digest, step_bits(trainer))
        })
    });
    assert!(found.iter().all(|rank| *rank == found[0]));
    found[0]
}

#[test]
fn a_state_of_any_layout_is_restored_in_any_other() {
    for compute in ["f32", "bf16"] {
        let format = format!("precision.compute={compute}");
        let configs = LAYOUTS.map(|layout| {
            let settings = [&layout[..], &[&format, "batch.global_sequences=8"]].concat();
            config("llama-smoke", &settings)
        });
        for (number, from) in configs.iter().enumerate() {
            let saved = saved(from);
            // In bf16, where weights are restored elsewhere, a circle of layouts is enough.
            let next = [configs[(number + 1) % configs.len()].clone()];
            let targets = if compute == "f32" { &configs[..] } else { &next };
            for to in targets {
                let (digest, next) = restored(to, &saved);
                let case = format!(
                    "{compute}, {:?} to {:?}",
                    from.settings.parallel, to.settings.parallel
                );
                assert_eq!(Some(digest), saved.digest, "{case}");
                for (found, expected) in next.into_iter().zip(saved.next) {
                    let [found, expected] = [found, expected].map(f64::from_bits);
                    let tolerance = if compute == "f32" { 1e-5 } else { 5e-3 };
                    assert!(
                        (found / expected - 1.0).abs() < tolerance,
                        "{case}: {found} {expected}"
                    );
                }
            }
        }
    }
}

/// Engine whose first pass has a gradient that is not a number.
#[derive(Debug)]
struct Broken {
    engine: Box<dyn Model>,
    passes: usize,
}

struct BrokenSink<'a> {
    sink: &'a mut dyn StepSink,
    breaks: bool,
}

impl StepSink for BrokenSink<'_> {
    fn gradient(&mut self, segment: usize) -> Result<ViewMut<'_, f32>, models::Error> {
        self.sink.gradient(segment)
    }

    fn complete(&mut self, segment: usize) -> Result<(), models::Error> {
        if self.breaks && segment == 1 {
            self.sink.gradient(segment)?.host()[0] = f32::NAN;
        }
        self.sink.complete(segment)
    }

    fn enter(&mut self, pass: Pass) {
        self.sink.enter(pass);
    }
}

impl Model for Broken {
    fn layout(&self) -> &models::Layout {
        self.engine.layout()
    }

    fn train(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
        scale: f32,
        sums: Sums,
        loss: ViewMut<'_, f64>,
        sink: &mut dyn StepSink,
    ) -> Result<(), models::Error> {
        self.passes += 1;
        let sink = &mut BrokenSink { sink, breaks: self.passes == 1 };
        self.engine.train(weights, batch, scale, sums, loss, sink)
    }

    fn evaluate(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
    ) -> Result<f64, models::Error> {
        self.engine.evaluate(weights, batch)
    }
}

/// The update must not fill the way between replicas with what windows need much later: the first
/// window would wait behind it.
#[test]
fn replicas_gather_weights_in_the_order_and_the_time_in_which_windows_need_them() {
    for ahead in [1, 3] {
        let ahead_text = format!("parallel.gather_ahead={ahead}");
        let settings = [
            "precision.compute=f32",
            "collectives.bucket_bytes=4096",
            "model.layers=6",
            &ahead_text,
        ];
        let config = config("smoke", &[&LAYOUTS[4], &settings[..]].concat());
        on_ranks(RANKS, |rank| {
            on_mesh(&config, rank, |trainer| {
                let unshared = |trainer: &Trainer<'_>| match &trainer.state.weights {
                    ModelWeights::F32(EngineWeights::Sharded(weights)) => weights.unshared(),
                    other => panic!("{other:?}"),
                };
                trainer.step(Requests::default).unwrap();
                let buckets = trainer.state.shard.buckets.len();
                assert!(buckets > ahead + 2, "{buckets} buckets");
                assert_eq!(unshared(trainer), buckets - (ahead + 1), "{ahead} ahead");
                assert!(trainer.state.weights.is_any_in_flight());
                trainer.synchronize_weights().unwrap();
                assert_eq!(unshared(trainer), 0);
                assert!(!trainer.state.weights.is_any_in_flight());
            });
        });
    }
}

/// Products of zeros would take another time than those of training.
#[test]
fn a_rank_that_computes_alone_has_weights_in_every_window() {
    for reshard in ["true", "false"] {
        let reshard = format!("parallel.reshard={reshard}");
        let config = config("smoke", &[&LAYOUTS[3], &["model.layers=6", &reshard][..]].concat());
        on_ranks(RANKS, |rank| {
            on_mesh(&config, rank, |trainer| {
                trainer.synchronize_weights().unwrap();
                let alone = MicroBatches::Fixed(Reads::Alone);
                trainer.accumulate_gradients(alone, false).unwrap();
                let windows: Vec<f32> = match &trainer.state.weights {
                    ModelWeights::F32(EngineWeights::Sharded(weights)) => weights.all_windows(),
                    other => panic!("{other:?}"),
                };
                let is_zero = |part: &[f32]| part.iter().all(|weight| *weight == 0.0);
                assert!(!windows.chunks(4096).any(is_zero), "{reshard}");
            });
        });
    }
}

/// The first of several micro-batches is not finite on one rank, once: computing the step again
/// repairs that.
#[test]
fn a_gradient_that_is_not_finite_names_its_rank_where_gradients_are_sharded() {
    for [sharded, recompute] in [["gradients", "0"], ["weights", "0"], ["weights", "100"]] {
        let sharded = format!("parallel.sharded={sharded}");
        let recomputes = format!("sdc.recompute_every_steps={recompute}");
        let config = config("smoke", &[&sharded, &recomputes, "batch.micro_sequences=1"]);
        assert!(config.workload.batch.accumulation(2).unwrap() > 1);
        let failures = on_ranks(2, |rank| {
            let mut trainer = trainer(&config, rank);
            if rank.rank() == 1 {
                let layout = trainer.state.layout.clone();
                let engine = engine(&config, layout, 1, &Allocator::host()).unwrap();
                trainer.model = Box::new(Broken { engine, passes: 0 });
            }
            let stepped = trainer.step(Requests::default);
            (stepped.err(), trainer.take_corruptions())
        });
        for (failure, found) in failures {
            if recompute == "0" {
                let failure = failure.expect("nothing repairs it");
                let named = (failure.code, failure.rank);
                assert_eq!(named, (ExitCode::Numerical, Some(1)), "{failure}");
            } else {
                assert!(failure.is_none(), "{failure:?}");
                let [found] = &found[..] else { panic!("{found:?}") };
                assert_eq!((found.rank, found.found), (Some(1), None));
            }
        }
    }
}
