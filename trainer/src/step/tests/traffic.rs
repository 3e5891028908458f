//! Tests that the traffic over each dimension is that of closed formulas, to the byte.

use super::*;
use crate::mesh;

/// Bytes that a rank sends over a dimension in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sent {
    dimension: String,
    operation: String,
    bytes: u64,
}

impl Sent {
    fn new(dimension: &str, operation: &str, bytes: usize) -> Self {
        let [dimension, operation] = [dimension, operation].map(str::to_owned);
        Self { dimension, operation, bytes: bytes as u64 }
    }
}

/// Sizes of a job, and what is sharded in it.
#[derive(Debug, Clone, Copy)]
struct Case {
    data: usize,
    shard: usize,
    sharded: Sharded,
    micro_batches: usize,
}

impl Case {
    fn config(&self) -> Config {
        let Self { data, shard, sharded, micro_batches } = self;
        let sequences = data * shard * micro_batches;
        let settings = [
            format!("parallel.data={data}"),
            format!("parallel.shard={shard}"),
            format!("parallel.sharded={sharded}"),
            format!("batch.global_sequences={sequences}"),
            "batch.micro_sequences=1".to_owned(),
            // Traffic of checks and of evaluations is that of no step.
            "sdc.recompute_every_steps=2".to_owned(),
            "data.evaluation_sequences=5".to_owned(),
        ];
        config("smoke", &settings.each_ref().map(String::as_str))
    }

    /// Returns the closed formulas. Of a bucket of n bytes, a rank sends (s - 1) / s n to the s
    /// ranks of its shard group, and of its part of the group's sum (d - 1) / d n / s to the d
    /// ranks of the data dimension.
    fn expected(&self, config: &Config) -> Vec<Sent> {
        let Self { data, shard, sharded, micro_batches } = *self;
        let (layout, plan) = placed_layout(config, data * shard);
        let over_shard = |bytes: usize| bytes / shard * (shard - 1);
        let over_data = |bytes: usize| bytes / shard / data * (data - 1);
        let sum = |of: &dyn Fn(usize) -> usize| -> usize {
            plan.buckets.iter().map(|bucket| of(4 * bucket.range.len())).sum()
        };
        let reductions = if sharded >= Sharded::Gradients { micro_batches } else { 1 };
        let is_grid = data > 1 && shard > 1;
        let [in_shard, in_data] = if is_grid { ["shard", "data"] } else { ["world"; 2] };
        let [to_shard, to_data] = [sum(&over_shard), sum(&over_data)];
        // The last window of forward is kept for backward, and the first block's for the next
        // micro-batch; tied embeddings are read twice in forward.
        let gathered = |bucket: usize| over_shard(4 * plan.buckets[bucket].range.len());
        let uses = crate::step::windows::WeightWindows::new(&layout.uses(), &plan, 1, true);
        let windows = micro_batches * uses.uses.iter().map(|it| gathered(it.bucket)).sum::<usize>();
        let kept = uses.kept(micro_batches).into_iter().map(gathered).sum::<usize>();
        let sent = match (sharded, is_grid) {
            (Sharded::None, false) => {
                vec![Sent::new("world", "all_reduce", 2 * (to_shard + to_data))]
            }
            (Sharded::None, true) => vec![
                Sent::new("shard", "reduce_scatter", to_shard),
                Sent::new("data", "all_reduce", 2 * to_data),
                Sent::new("shard", "all_gather", to_shard),
            ],
            (Sharded::Weights, _) => vec![
                Sent::new(in_shard, "reduce_scatter", reductions * to_shard),
                Sent::new(in_data, "reduce_scatter", reductions * to_data),
                Sent::new(in_data, "all_gather", to_data),
                Sent::new(in_shard, "all_gather", windows - kept),
            ],
            (_, _) => vec![
                Sent::new(in_shard, "reduce_scatter", reductions * to_shard),
                Sent::new(in_data, "reduce_scatter", reductions * to_data),
                Sent::new(in_data, "all_gather", to_data),
                Sent::new(in_shard, "all_gather", to_shard),
            ],
        };
        sent.into_iter().filter(|row| row.bytes > 0).collect()
    }
}

/// Checks that NCCL runs the operation once before training: it would connect ranks later, while
/// other operations are in flight.
fn assert_connected(row: &Sent, case: Case) {
    let line = Some(&row.dimension[..]).filter(|dimension| *dimension != "world");
    let connected = mesh::operations(case.sharded, line).iter();
    let names: Vec<String> = connected.map(|it| it.to_string().replace('-', "_")).collect();
    assert!(names.contains(&row.operation), "{row:?} is not connected, {names:?} are: {case:?}");
}

#[test]
fn traffic_is_that_of_the_formula_to_the_byte() {
    for [data, shard] in [[1, 3], [3, 1], [2, 2], [2, 3]] {
        for sharded in Sharded::ALL {
            for micro_batches in [1, 2] {
                let case = Case { data, shard, sharded, micro_batches };
                let config = case.config();
                let found = on_ranks(data * shard, |rank| {
                    on_mesh(&config, rank, |trainer| {
                        let plan = trainer.batches.plan();
                        let mut evaluation = Evaluation::new(&source(&config), 5, plan).unwrap();
                        for step in 0..7 {
                            trainer.step(Requests::default).unwrap();
                            if step % 3 == 1 {
                                trainer.evaluate(&mut evaluation, || false).unwrap();
                            }
                        }
                        trainer.traffic()
                    })
                });
                for rows in found {
                    let sent = |row: &DimensionTraffic| {
                        let bytes = row.bytes_per_step as usize;
                        assert_eq!(bytes as f64, row.bytes_per_step, "{case:?}: {row:?}");
                        Sent::new(&row.dimension, &row.operation, bytes)
                    };
                    let found: Vec<Sent> =
                        rows.iter().map(sent).filter(|row| row.bytes > 0).collect();
                    assert_eq!(found, case.expected(&config), "{case:?}");
                    found.iter().for_each(|row| assert_connected(row, case));
                }
            }
        }
    }
}
