//! Tests that the digest of the weights is that of the elements, however ranks share them.

use super::*;

/// Returns the digest of a rank's initial weights.
fn initial_digest(config: &Config, world: &dyn Collective) -> WeightsDigest {
    on_mesh(config, world, |trainer| trainer.weights_digest(trainer.ranks()).unwrap())
}

/// Returns the digest of the initial weights, from the elements of each tensor in one piece.
fn expected(workload: &str) -> WeightsDigest {
    let config = config(workload, &[]);
    let layout = models::Layout::new(&config.workload.model);
    let mut weights = vec![0.0; layout.len()];
    models::init_weights(&layout, config.workload.schedule.seed, &mut weights);
    let digest =
        |tensor: &Tensor| models::digest_elements(&tensor.name, 0, &weights[tensor.range.clone()]);
    layout.tensors().iter().map(digest).sum()
}

#[test]
fn layout_format_and_number_of_ranks_do_not_change_the_digest() {
    let divisions = [[1, 1], [1, 2], [1, 3]].into_iter().chain(DIVISIONS);
    for (workload, [data, shard]) in
        divisions.flat_map(|division| ["smoke", "llama-smoke"].map(|name| (name, division)))
    {
        let expected = expected(workload);
        for (compute, is_sharded) in
            [("f32", false), ("f32", true), ("bf16", false), ("bf16", true)]
        {
            let format = format!("precision.compute={compute}");
            let ranks = data * shard;
            let sequences = format!("batch.global_sequences={}", 2 * ranks);
            let [data, shard] = division([data, shard]);
            let extra = [&format, &data, &shard, sharding(is_sharded), &sequences];
            let config = config(workload, &extra);
            for digest in on_ranks(ranks, |rank| initial_digest(&config, rank)) {
                assert_eq!(digest, expected, "{workload}, {extra:?}");
            }
        }
    }
}

/// Changes an element on the rank that owns it and nowhere else.
#[test]
fn every_rank_sees_a_weight_that_one_owner_has_changed() {
    for is_sharded in [false, true] {
        let config = config("smoke", &["precision.compute=bf16", sharding(is_sharded)]);
        on_ranks(2, |rank| {
            let mut trainer = trainer(&config, rank);
            let before = trainer.weights_digest(trainer.ranks()).unwrap();
            if rank.rank() == 1 {
                let owned = trainer.state.shard.saved().last().unwrap();
                trainer.state.weights.master_mut(&owned).host()[0] += 1.0;
            }
            assert_ne!(trainer.weights_digest(trainer.ranks()).unwrap(), before, "{is_sharded}");
        });
    }
}

#[test]
fn ranks_that_hold_all_weights_know_the_digest_without_the_others() {
    for is_sharded in [false, true] {
        let config = config("smoke", &[sharding(is_sharded)]);
        on_ranks(2, |rank| {
            let mut trainer = trainer(&config, rank);
            let whole = trainer.weights_digest(trainer.ranks()).unwrap();
            assert_eq!(trainer.replica_digest().unwrap(), (!is_sharded).then_some(whole));
        });
    }
}
