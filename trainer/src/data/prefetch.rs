//! Prefetch of micro-batches on a background thread.
//!
//! The order does not depend on the number of ranks: a step that begins with global sequence c
//! takes the G sequences `c .. c + G`; rank r of R takes the r-th share of G / R, B at a time.
//! Every checkpoint holds the cursor c.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

use device::{Allocator, DeviceBuffer, threads};

use super::random_tokens::fill_at_random;
use super::sequences::Sequences;

/// Number of micro-batch buffers: one in use, the others filled or being filled.
const PREFETCH_DEPTH: usize = 4;

/// Plan of one rank's micro-batches in the global order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPlan {
    /// Rank, r.
    pub rank: usize,
    /// Number of ranks, R.
    pub world: usize,
    /// Sequences per rank and micro-batch, B.
    pub micro_sequences: usize,
    /// Tokens per sequence, T.
    pub sequence_tokens: usize,
    /// Sequences per step over all ranks, G.
    pub global_sequences: usize,
    /// Micro-batches per step and rank.
    pub accumulation: usize,
}

impl BatchPlan {
    /// Returns the global index of a micro-batch's first sequence, in a step that begins with
    /// sequence `cursor`; the other B - 1 follow it.
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

/// Memory for one micro-batch.
#[derive(Debug)]
pub struct Buffers {
    inputs: DeviceBuffer<u32>,  // (B, T)
    targets: DeviceBuffer<u32>, // (B, T)
}

impl Buffers {
    /// Allocates the buffers of one prefetcher.
    pub fn allocate(plan: &BatchPlan, allocator: &Allocator) -> Vec<Self> {
        let allocator = allocator.for_purpose("prefetched tokens");
        (0..PREFETCH_DEPTH).map(|_| Self::of_one(plan, &allocator)).collect()
    }

    /// Allocates the buffers of one micro-batch.
    pub fn of_one(plan: &BatchPlan, allocator: &Allocator) -> Self {
        let tokens = || allocator.zeros(plan.micro_sequences * plan.sequence_tokens);
        Self { inputs: tokens(), targets: tokens() }
    }

    /// Reads a micro-batch of a plan's rank, in a step that begins with sequence `cursor`.
    pub fn fill(
        &mut self,
        sequences: &dyn Sequences,
        plan: &BatchPlan,
        cursor: u64,
        micro_batch: usize,
    ) {
        let first = plan.first_sequence(cursor, micro_batch);
        let inputs = self.inputs.host_mut().chunks_exact_mut(plan.sequence_tokens);
        let targets = self.targets.host_mut().chunks_exact_mut(plan.sequence_tokens);
        for (index, (inputs, targets)) in (first..).zip(inputs.zip(targets)) {
            sequences.fill(index, inputs, targets);
        }
    }

    /// Writes a fixed input.
    pub(crate) fn fill_at_random(&mut self, vocabulary: usize) {
        fill_at_random(self.inputs.host_mut(), vocabulary);
        fill_at_random(self.targets.host_mut(), vocabulary);
    }

    /// Returns the input tokens, to be changed.
    pub fn inputs_mut(&mut self) -> &mut [u32] {
        self.inputs.host_mut()
    }

    /// Returns the micro-batch in the buffers.
    pub fn micro_batch(&self) -> MicroBatch<'_> {
        MicroBatch(self)
    }
}

/// Micro-batch, borrowed until the next one.
#[derive(Debug, Clone, Copy)]
pub struct MicroBatch<'a>(&'a Buffers);

impl<'a> MicroBatch<'a> {
    /// Returns the input tokens (B, T), row by row.
    pub fn inputs(&self) -> &'a [u32] {
        self.0.inputs.host()
    }

    /// Returns the target tokens (B, T): the inputs one position later.
    pub fn targets(&self) -> &'a [u32] {
        self.0.targets.host()
    }
}

/// Buffers passed between the two threads. The standard library's channels would also work, but
/// they allocate the first time that they block, which can be in any step.
#[derive(Debug)]
struct Exchange {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    filled: VecDeque<Buffers>, // in order
    free: VecDeque<Buffers>,
    open: bool, // until either thread ends
}

impl Exchange {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // no code panics under the lock
    }

    /// Waits for buffers in one of the queues; `None` if the other thread has ended.
    fn take(&self, queue: fn(&mut State) -> &mut VecDeque<Buffers>) -> Option<Buffers> {
        let must_wait = |state: &mut State| state.open && queue(state).is_empty();
        let waited = self.changed.wait_while(self.lock(), must_wait);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.open { queue(&mut state).pop_front() } else { None }
    }

    fn give(&self, queue: fn(&mut State) -> &mut VecDeque<Buffers>, buffers: Buffers) {
        queue(&mut self.lock()).push_back(buffers); // has capacity for all buffers
        self.changed.notify_all();
    }

    fn close(&self) {
        self.lock().open = false;
        self.changed.notify_all();
    }
}

/// Closes the exchange when its thread ends, also after a panic.
#[derive(Debug)]
struct CloseOnDrop(Arc<Exchange>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Background thread that reads up to three micro-batches ahead.
///
/// Buffers circulate between the thread and the caller, so [`Prefetcher::next`] allocates nothing;
/// its duration is the wait for data.
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
    /// If the batch does not divide among ranks.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        sequences: Arc<dyn Sequences>,
        plan: BatchPlan,
        cursor: u64,
        buffers: Vec<Buffers>,
    ) -> Result<Self, threads::Error> {
        plan.check();
        let state = State {
            filled: VecDeque::with_capacity(PREFETCH_DEPTH),
            free: buffers.into(),
            open: true,
        };
        let exchange = Arc::new(Exchange { state: Mutex::new(state), changed: Condvar::new() });
        let guard = CloseOnDrop(Arc::clone(&exchange));
        let thread = threads::spawn("data", move || work(&*sequences, plan, cursor, &guard.0))?;
        Ok(Self { current: None, exchange, thread: Some(thread) })
    }

    /// Returns the next micro-batch, in order; waits until it has been read.
    ///
    /// # Panics
    /// If the data thread has panicked.
    #[expect(clippy::should_implement_trait, reason = "an iterator's items cannot borrow from it")]
    pub fn next(&mut self) -> MicroBatch<'_> {
        if let Some(used) = self.current.take() {
            self.exchange.give(|state| &mut state.free, used);
        }
        let Some(buffers) = self.exchange.take(|state| &mut state.filled) else {
            panic!("the data thread has stopped; see its panic message above");
        };
        MicroBatch(self.current.insert(buffers))
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.exchange.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // `next` has reported a panic
        }
    }
}

fn work(sequences: &dyn Sequences, plan: BatchPlan, cursor: u64, exchange: &Exchange) {
    for cursor in (cursor..).step_by(plan.global_sequences) {
        for micro_batch in 0..plan.accumulation {
            let Some(mut buffers) = exchange.take(|state| &mut state.free) else { return };
            buffers.fill(sequences, &plan, cursor, micro_batch);
            exchange.give(|state| &mut state.filled, buffers);
        }
    }
}
