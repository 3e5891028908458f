//! Tests that a step reports the norms of the weights that it began with, and of their updates.

use super::*;

/// Returns the master weights of all ranks, in an order that does not change.
fn weights(trainer: &mut Trainer<'_>) -> Vec<f32> {
    trainer.synchronize_weights().unwrap();
    let state = &trainer.state;
    let own = |piece: Piece| state.weights.master(&piece).host().to_vec();
    let own: Vec<f32> = state.shard.saved().flat_map(own).collect();
    let ranks = trainer.ranks().gather_bytes(bytemuck::cast_slice(&own)).unwrap();
    ranks
        .iter()
        .flat_map(|bytes| bytes.as_chunks().0)
        .map(|&bytes| f32::from_ne_bytes(bytes))
        .collect()
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Returns the bits that each step reports, and checks their values.
fn health_bits(config: &Config, collective: &dyn Collective) -> Vec<Option<[u64; 2]>> {
    let mut trainer = trainer(config, collective);
    let mut before = weights(&mut trainer);
    let step = |_| {
        let now = weights(&mut trainer);
        let stepped = trainer.step(Requests::default).unwrap();
        let update = now.iter().zip(&before).map(|(now, before)| f64::from(now - before));
        let parameter_norm = norm(now.iter().copied().map(f64::from));
        let update_ratio = norm(update) / parameter_norm;
        before = now;
        let health = stepped.health?;
        let is_near = |found: f64, exact: f64| (found / exact - 1.0).abs() < 1e-4;
        assert!(is_near(health.parameter_norm, parameter_norm), "{health:?} {parameter_norm}");
        assert!(is_near(health.update_ratio, update_ratio), "{health:?} {update_ratio}");
        Some([health.parameter_norm.to_bits(), health.update_ratio.to_bits()])
    };
    (0..4).map(step).collect()
}

#[test]
fn norms_are_right_on_all_ranks_and_sharding_does_not_change_a_bit() {
    for compute in ["f32", "bf16"] {
        for world in [1, 2] {
            let run = |sharded: &str| {
                let config = config(
                    "llama-smoke",
                    &[
                        &format!("precision.compute={compute}"),
                        &format!("parallel.sharded={sharded}"),
                        "telemetry.health_every_steps=1",
                    ],
                );
                on_ranks(world, |rank| health_bits(&config, rank))
            };
            let ranks = run("none");
            assert!(ranks.iter().all(|rank| *rank == ranks[0]), "all ranks agree");
            assert_eq!(
                ranks[0].iter().map(Option::is_some).collect::<Vec<_>>(),
                [false, true, true, true]
            );
            assert_eq!(run("optimizer"), ranks, "{compute} on {world} ranks");
            assert_eq!(run("weights"), run("gradients"), "{compute} on {world} ranks");
        }
    }
}

#[test]
fn looking_changes_no_bit_and_happens_at_its_interval() {
    let run = |every: u64| {
        let every = format!("telemetry.health_every_steps={every}");
        let config = config("smoke", &[&every, "parallel.sharded=optimizer"]);
        on_ranks(2, |rank| train(&config, rank))
    };
    assert_eq!(run(1), run(0));
    let config = config("smoke", &["telemetry.health_every_steps=2"]);
    let single = collectives::Single::new();
    let mut trainer = trainer(&config, &single);
    let has_health = |_| trainer.step(Requests::default).unwrap().health.is_some();
    assert_eq!((0..4).map(has_health).collect::<Vec<_>>(), [false, true, false, true]);
}
