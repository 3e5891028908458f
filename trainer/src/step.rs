//! One training step: the same text for one process and ten thousand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use collectives::{BucketPlan, Buffer, Collective, Pending};
use models::{Batch, Layout, Model, Sums};

use crate::arriving::Arriving;
use crate::communication::{Communication, Tally};
use crate::data::{BatchPlan, Prefetcher, Sequences};
use crate::failure::Outcome;
use crate::inject::Injector;
use crate::optimizer::Optimizer;
use crate::overlap::{self, Overlap};
use crate::phase::{Phase, PhaseClock};
use crate::schedule::learning_rate;
use crate::shard::Shard;
use crate::state::State;
use crate::vote::{Vote, Votes};

/// Everything one rank needs to train.
#[derive(Debug)]
pub struct Trainer<'world> {
    pub(crate) collective: &'world dyn Collective,
    pub(crate) deadline: Duration,
    pub(crate) overlap: bool,
    pub(crate) model: Box<dyn Model>,
    pub(crate) layout: Layout,
    pub(crate) plan: BucketPlan,
    pub(crate) shard: Shard,
    pub(crate) state: State<'world>,
    /// Weights that came, since the last step told of them.
    pub(crate) gathers: Tally,
    pub(crate) gradients: Buffer<f32>,
    pub(crate) optimizer: Optimizer,
    pub(crate) sequences: Arc<dyn Sequences>,
    pub(crate) batch_plan: BatchPlan,
    pub(crate) data: Prefetcher,
    pub(crate) accumulation: usize,
    pub(crate) tokens_per_step: u64,
    pub(crate) clock: PhaseClock,
    pub(crate) votes: Votes,
    pub(crate) pending: Vec<Pending<'static>>,
    pub(crate) injector: Injector,
}

/// What this rank wishes for after the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wish {
    /// A save is due.
    pub save: bool,
    /// The run was asked to stop.
    pub stop: bool,
}

/// What one step did, the same on every rank but for `communication`.
#[derive(Debug, Clone, Copy)]
pub struct Stepped {
    /// Mean cross-entropy over the global batch in nats per token.
    pub loss: f64,
    /// Global gradient norm before clipping.
    pub gradient_norm: f64,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// What the network did.
    pub communication: Communication,
    /// What any rank wished for.
    pub agreed: Wish,
}

impl Trainer<'_> {
    /// Trains on one global batch and advances the state.
    ///
    /// # Errors
    /// Exit code 4 before the update when a loss or gradient is not finite, naming step, rank and
    /// tensor; 5 when a peer is lost or late.
    pub fn step(&mut self, wish: Wish) -> Outcome<Stepped> {
        let step = self.state.progress.step;
        let (loss_sum, non_finite, reduced) = self.gradients_of_global_batch()?;
        self.clock.enter(Phase::Optimizer);
        let squares = self.own_squares();
        let overflow = self.overflow(squares);
        let non_finite = non_finite.or(overflow.filter(|_| self.is_alone()));
        let vote = Vote { loss_sum, non_finite, squares, overflow, wish };
        self.clock.enter(Phase::CommExposed);
        let deadline = Instant::now() + self.deadline;
        self.votes.gather(self.collective, vote, deadline)?;
        self.check_finite()?;
        let gradient_norm = self.votes.squares().sqrt();
        let learning_rate = learning_rate(&self.optimizer.schedule, step);
        self.update(gradient_norm, learning_rate)?;
        self.advance();
        Ok(Stepped {
            loss: self.votes.loss_sum() / self.tokens_per_step as f64,
            gradient_norm,
            learning_rate,
            communication: reduced.and(self.gathers.take()),
            agreed: self.votes.agreed(),
        })
    }

    fn advance(&mut self) {
        let progress = &mut self.state.progress;
        progress.step += 1;
        progress.next_sequence += self.batch_plan.global_sequences as u64;
        progress.tokens += self.tokens_per_step;
    }

    /// Forward, backward and reduction: gradients end as the mean over the global batch, under a
    /// sharded optimizer in this rank's parts alone.
    ///
    /// Returns the local sum of losses and, of several ranks, the first tensor that is not finite.
    fn gradients_of_global_batch(&mut self) -> Outcome<(f64, Option<usize>, Communication)> {
        let inspects = !self.is_alone();
        let Self { layout, plan, model, state, data, clock, gradients, gathers, .. } = self;
        let (deadline, scale) = (self.deadline, 1.0 / self.tokens_per_step as f32);
        let (accumulation, early, collective) = (self.accumulation, self.overlap, self.collective);
        let (reduction, injector, clock) = (self.shard.reduction(), &self.injector, &*clock);
        let mut weights = Arriving { weights: &mut state.weights, gathers, clock, deadline };
        let pending = overlap::recycle(std::mem::take(&mut self.pending));
        let (pending, outcome) = collectives::scope(self.collective, move |scope| {
            let mut sink = Overlap {
                scope,
                layout,
                plan,
                reduction,
                remaining: gradients,
                launched: 0,
                pending: overlap::recycle(pending),
                clock,
                last_micro_batch: false,
                early,
                inspects,
                non_finite: None,
                error: None,
            };
            let outcome = (|| {
                let mut loss_sum = 0.0;
                for micro_batch in 0..accumulation {
                    sink.clock.enter(Phase::Data);
                    let tokens = data.next();
                    let batch = Batch { inputs: tokens.inputs(), targets: tokens.targets() };
                    sink.last_micro_batch = micro_batch + 1 == accumulation;
                    // What the last step left is replaced, so nothing is cleared before.
                    let sums = if micro_batch == 0 { Sums::Write } else { Sums::Add };
                    let trained = model.train(&mut weights, batch, scale, sums, &mut sink);
                    loss_sum +=
                        trained.inspect_err(|error| collective.abandon(&error.to_string()))?;
                }
                loss_sum = injector.loss(loss_sum);
                let communication = sink.finish(Instant::now() + deadline)?;
                Ok((loss_sum, sink.non_finite, communication))
            })();
            (overlap::recycle(sink.pending), outcome)
        });
        self.pending = pending;
        outcome
    }
}
