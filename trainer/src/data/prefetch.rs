//! Micro-batches made ahead of time on a thread of their own.
//!
//! The order does not depend on the number of ranks: a step that begins with global sequence c
//! takes the G sequences `c .. c + G`; rank r of R takes the r-th share of G / R, B at a time. The
//! cursor c is in every checkpoint.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

use super::Sequences;

/// Micro-batches that exist at a time: one in use, the others ready or being filled.
pub const PREFETCH_DEPTH: usize = 4;

/// How one rank's micro-batches are cut from the global order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPlan {
    /// This rank, r.
    pub rank: usize,
    /// R, number of ranks.
    pub world: usize,
    /// B, sequences per rank and micro-batch.
    pub micro_sequences: usize,
    /// T, tokens per sequence.
    pub sequence_tokens: usize,
    /// G, sequences per step over all ranks.
    pub global_sequences: usize,
    /// Micro-batches per step and rank.
    pub accumulation: usize,
}

impl BatchPlan {
    /// Global index of the first sequence of a micro-batch, in a step that begins with sequence
    /// `cursor`; the other B - 1 follow it.
    pub fn first_sequence(&self, cursor: u64, micro_batch: usize) -> u64 {
        let share = self.global_sequences / self.world;
        let within = self.rank * share + micro_batch * self.micro_sequences;
        cursor + within as u64
    }

    fn check(&self) {
        let per_rank = self.micro_sequences * self.accumulation;
        assert!(self.rank < self.world, "no such rank: {self:?}");
        assert!(per_rank > 0 && self.sequence_tokens > 0, "an empty batch: {self:?}");
        assert_eq!(self.global_sequences, per_rank * self.world, "batch does not divide: {self:?}");
    }
}

#[derive(Debug)]
struct Buffers {
    inputs: Vec<u32>,  // (B, T)
    targets: Vec<u32>, // (B, T)
}

/// One micro-batch, borrowed until the next is asked for.
#[derive(Debug, Clone, Copy)]
pub struct MicroBatch<'a>(&'a Buffers);

impl<'a> MicroBatch<'a> {
    /// Input tokens (B, T), row by row.
    pub fn inputs(&self) -> &'a [u32] {
        &self.0.inputs
    }

    /// Target tokens (B, T): the inputs one position further on.
    pub fn targets(&self) -> &'a [u32] {
        &self.0.targets
    }
}

/// Buffers on their way between the two threads. A channel would do, but those of the standard
/// library allocate the first time that they have to wait, which may be at any step.
#[derive(Debug)]
struct Exchange {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    filled: VecDeque<Buffers>, // in order
    free: VecDeque<Buffers>,
    open: bool, // until either side is gone
}

impl Exchange {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // no code panics under the lock
    }

    /// Waits for buffers in one of the queues; `None` when the other side is gone.
    fn take(&self, queue: fn(&mut State) -> &mut VecDeque<Buffers>) -> Option<Buffers> {
        let must_wait = |state: &mut State| state.open && queue(state).is_empty();
        let waited = self.changed.wait_while(self.lock(), must_wait);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.open { queue(&mut state).pop_front() } else { None }
    }

    fn give(&self, queue: fn(&mut State) -> &mut VecDeque<Buffers>, buffers: Buffers) {
        queue(&mut self.lock()).push_back(buffers); // there is room for all buffers
        self.changed.notify_all();
    }

    fn close(&self) {
        self.lock().open = false;
        self.changed.notify_all();
    }
}

/// Tells the other side that this one is gone, also after a panic.
#[derive(Debug)]
struct Side(Arc<Exchange>);

impl Drop for Side {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A background thread that stays up to [`PREFETCH_DEPTH`] - 1 micro-batches ahead.
///
/// Buffers go round between the thread and the caller, so [`Prefetcher::next`] allocates nothing;
/// the time it takes is the wait for data.
#[derive(Debug)]
pub struct Prefetcher {
    current: Option<Buffers>,
    exchange: Arc<Exchange>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetcher {
    /// Starts the thread at the first micro-batch of a step that begins with sequence `cursor`.
    ///
    /// # Panics
    /// When the plan does not divide, or the system has no thread left.
    pub fn start(sequences: Arc<dyn Sequences>, plan: BatchPlan, cursor: u64) -> Self {
        plan.check();
        let length = plan.micro_sequences * plan.sequence_tokens;
        let buffers = || Buffers { inputs: vec![0; length], targets: vec![0; length] };
        let state = State {
            filled: VecDeque::with_capacity(PREFETCH_DEPTH),
            free: (0..PREFETCH_DEPTH).map(|_| buffers()).collect(),
            open: true,
        };
        let exchange = Arc::new(Exchange { state: Mutex::new(state), changed: Condvar::new() });
        let side = Side(Arc::clone(&exchange));
        let thread = std::thread::Builder::new()
            .name("data".to_owned())
            .spawn(move || work(&*sequences, plan, cursor, &side.0))
            .unwrap_or_else(|error| panic!("cannot start the data thread: {error}"));
        Self { current: None, exchange, thread: Some(thread) }
    }

    /// The next micro-batch, in order; waits until it is there.
    ///
    /// # Panics
    /// When the data thread has panicked.
    #[expect(clippy::should_implement_trait, reason = "an iterator's items cannot borrow from it")]
    pub fn next(&mut self) -> MicroBatch<'_> {
        if let Some(used) = self.current.take() {
            self.exchange.give(|state| &mut state.free, used);
        }
        let Some(buffers) = self.exchange.take(|state| &mut state.filled) else {
            panic!("the data thread has stopped; its own message is above");
        };
        MicroBatch(self.current.insert(buffers))
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.exchange.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there has shown itself in `next`
        }
    }
}

fn work(sequences: &dyn Sequences, plan: BatchPlan, cursor: u64, exchange: &Exchange) {
    for cursor in (cursor..).step_by(plan.global_sequences) {
        for micro_batch in 0..plan.accumulation {
            let Some(mut buffers) = exchange.take(|state| &mut state.free) else { return };
            let first = plan.first_sequence(cursor, micro_batch);
            let inputs = buffers.inputs.chunks_exact_mut(plan.sequence_tokens);
            let targets = buffers.targets.chunks_exact_mut(plan.sequence_tokens);
            for (index, (inputs, targets)) in (first..).zip(inputs.zip(targets)) {
                sequences.fill(index, inputs, targets);
            }
            exchange.give(|state| &mut state.filled, buffers);
        }
    }
}
