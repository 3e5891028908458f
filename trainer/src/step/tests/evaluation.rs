//! Tests that ranks share an evaluation, and that all run as many passes.

use device::ViewMut;
use models::{Batch, Layout, StepSink, Sums, WeightSource};

use super::*;

/// Engine that keeps the loss of each pass of an evaluation.
#[derive(Debug)]
struct Passes {
    engine: Box<dyn Model>,
    losses: Arc<Mutex<Vec<f64>>>,
}

impl Model for Passes {
    fn layout(&self) -> &Layout {
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
        self.engine.train(weights, batch, scale, sums, loss, sink)
    }

    fn evaluate(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
    ) -> Result<f64, models::Error> {
        let loss = self.engine.evaluate(weights, batch)?;
        self.losses.lock().unwrap().push(loss);
        Ok(loss)
    }
}

/// Sum of losses of an evaluation, and the loss of each of this rank's passes.
struct Found {
    sum: f64,
    losses: Vec<f64>,
}

/// Evaluates five micro-batches of two sequences.
fn evaluate(rank: &dyn Collective) -> Found {
    let config = config("smoke", &["data.evaluation_sequences=10"]);
    let mut trainer = trainer(&config, rank);
    let engine = engine(&config, trainer.state.layout.clone(), 1, &Allocator::host()).unwrap();
    let losses = Arc::default();
    trainer.model = Box::new(Passes { engine, losses: Arc::clone(&losses) });
    let plan = trainer.batches.plan();
    let mut evaluation = Evaluation::new(&source(&config), 10, plan).unwrap();
    let tokens = 10 * plan.sequence_tokens;
    let loss = trainer.evaluate(&mut evaluation, || false).unwrap().loss;
    let losses = losses.lock().unwrap().clone();
    Found { sum: loss * tokens as f64, losses }
}

#[test]
fn all_ranks_run_as_many_passes_and_every_micro_batch_counts_once() {
    let alone = evaluate(&Single::new());
    let micro_batches = alone.losses;
    assert_eq!(micro_batches.len(), 5);
    assert_eq!(alone.sum, micro_batches.iter().sum::<f64>());
    for (world, passes) in [(2, 3), (4, 2)] {
        let sum_of_rank = |rank| micro_batches.iter().skip(rank).step_by(world).sum::<f64>();
        let expected: f64 = (0..world).map(sum_of_rank).sum();
        for Found { sum, losses } in on_ranks(world, evaluate) {
            assert_eq!(losses.len(), passes, "{world} ranks");
            assert_eq!(sum, expected, "{world} ranks");
        }
    }
}
