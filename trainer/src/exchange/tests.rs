//! Sharded or not, the same bits; and what a rank holds is its part.

use collectives::{Collective, Threads};

use super::*;
use crate::config::Config;
use crate::data::Source;
use crate::failure::ExitCode;
use crate::inject::Injector;
use crate::optimizer::own_squares;
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

fn trainer<'world>(config: &Config, collective: &'world dyn Collective) -> Trainer<'world> {
    let vocabulary = config.workload.model.vocabulary;
    let source = Source::open(&config.workload.data, vocabulary, &config.base).unwrap();
    Trainer::new(config, &source, collective, Injector::default()).unwrap()
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
                let run = |is_sharded: bool| {
                    let format = format!("precision.compute={compute}");
                    let sharded = format!("run.shard_optimizer={is_sharded}");
                    let config = config(workload, &[&format, &sharded]);
                    on_ranks(world, |rank| train(&config, rank))
                };
                let (whole, sharded) = (run(false), run(true));
                let what = format!("{workload} in {compute} on {world} ranks");
                assert_eq!(whole, sharded, "{what}");
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

#[test]
fn a_rank_that_is_lost_ends_the_update() {
    let config = config("smoke", &["run.shard_optimizer=true", "collectives.deadline_s=0.2"]);
    let group = Threads::group(2);
    let mut trainer = trainer(&config, &group[0]);
    let failure = trainer.update(1.0, 1e-3).unwrap_err();
    assert_eq!((failure.code, failure.rank), (ExitCode::PeerLost, Some(1)));
}
