//! Interface of data sources for the trainer.

use std::fmt::Debug;

/// Random access to sequences by a global index, in an order that does not depend on the world
/// size.
pub trait Sequences: Send + Sync + Debug {
    /// Writes the T inputs and T targets of global sequence `index`. There is no last index: after
    /// an epoch the next one begins, in a new order.
    fn fill(&self, index: u64, inputs: &mut [u32], targets: &mut [u32]);

    /// Returns the number of sequences in an epoch; `None` if they never repeat.
    fn sequences_per_epoch(&self) -> Option<u64>;

    /// Returns the lowest mean loss of any model on this data in nats per token, where it is known.
    fn entropy_floor_nats(&self) -> Option<f64>;
}
