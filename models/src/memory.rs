//! The memory plan of one rank, made before anything is allocated.

use serde::Serialize;

use crate::workload::Compute;

/// One planned allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryItem {
    /// What it holds.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// The item of an engine that keeps weights packed.
pub const PACKED_WEIGHTS: &str = "packed weights";

/// What one rank holds at its peak. Memory that several ranks see counts for one of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// The flat buffers first, then the engine's, then the others'.
    pub items: Vec<MemoryItem>,
    /// How many of the items are flat buffers.
    flat_buffers: usize,
    parameters: u64,
}

impl MemoryPlan {
    /// The plan for flat buffers of `buffer_elements` (padding included) holding `parameters`, with
    /// working weights beside the master weights unless they are the same. Of the moments, and of
    /// master weights that the engine does not compute with, a rank has `held_elements`: fewer than
    /// all under a sharded optimizer.
    ///
    /// `others` is what the engine (activations, workspace), communication and checkpoints hold.
    pub fn new(
        parameters: usize,
        buffer_elements: usize,
        held_elements: usize,
        compute: Compute,
        others: impl IntoIterator<Item = (String, u64)>,
    ) -> Self {
        let (buffer, held) = (4 * buffer_elements as u64, 4 * held_elements as u64);
        let buffers = [
            ("weights", if compute == Compute::F32 { buffer } else { held }),
            ("gradients", buffer),
            ("Adam first moment", held),
            ("Adam second moment", held),
        ];
        let working = (compute.bytes() * buffer_elements) as u64;
        let working = (compute != Compute::F32).then_some(("working weights", working));
        let buffers = buffers.into_iter().chain(working);
        let flat_buffers = buffers.clone().count();
        let buffers = buffers.map(|(name, bytes)| (name.to_owned(), bytes));
        let items = buffers.chain(others);
        Self {
            flat_buffers,
            items: items.map(|(name, bytes)| MemoryItem { name, bytes }).collect(),
            parameters: parameters as u64,
        }
    }

    /// All items together.
    pub fn total_bytes(&self) -> u64 {
        sum(&self.items)
    }

    /// A checkpoint's tensors over all ranks: master weights and both moments, f32, no padding.
    pub fn checkpoint_bytes(&self) -> u64 {
        3 * 4 * self.parameters
    }

    /// Bytes of the master weights on this rank.
    pub fn weight_bytes(&self) -> u64 {
        self.items[0].bytes
    }

    /// Bytes of both Adam moments on this rank.
    pub fn optimizer_bytes(&self) -> u64 {
        self.items[2].bytes + self.items[3].bytes
    }

    /// Bytes of what a sharded optimizer divides: both moments, and master weights that the engine
    /// does not compute with.
    pub fn sharded_bytes(&self) -> u64 {
        let has_working_weights = self.flat_buffers > 4;
        self.optimizer_bytes() + if has_working_weights { self.weight_bytes() } else { 0 }
    }

    /// Bytes that grow with the micro-batch or serve communication: all but the flat buffers.
    pub fn working_bytes(&self) -> u64 {
        sum(&self.items[self.flat_buffers..])
    }
}

/// What exceeds 64 bits fits nowhere, and stays so.
fn sum(items: &[MemoryItem]) -> u64 {
    items.iter().fold(0, |sum: u64, item| sum.saturating_add(item.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn plan() -> MemoryPlan {
        let activations = ("activations".to_owned(), 2 * GIB);
        MemoryPlan::new((1 << 28) - 100, 1 << 28, 1 << 28, Compute::F32, [activations])
    }

    #[test]
    fn working_weights_of_their_own_count_as_a_flat_buffer() {
        let activations = ("activations".to_owned(), 2 * GIB);
        let plan = MemoryPlan::new(1 << 28, 1 << 28, 1 << 28, Compute::Bf16, [activations]);
        assert_eq!(plan.total_bytes(), 6 * GIB + GIB / 2);
        assert_eq!((plan.working_bytes(), plan.optimizer_bytes()), (2 * GIB, 2 * GIB));
    }

    #[test]
    fn a_sharded_optimizer_holds_its_parts_of_the_moments_and_of_master_weights_of_their_own() {
        let plan = |compute| MemoryPlan::new(1 << 28, 1 << 28, 1 << 26, compute, []);
        assert_eq!(plan(Compute::F32).total_bytes(), 2 * GIB + GIB / 2);
        assert_eq!(plan(Compute::Bf16).total_bytes(), GIB + GIB / 2 + 3 * GIB / 4);
        assert_eq!(plan(Compute::Bf16).weight_bytes(), GIB / 4);
        let sharded = [Compute::F32, Compute::Bf16].map(|compute| plan(compute).sharded_bytes());
        assert_eq!(sharded, [GIB / 2, 3 * GIB / 4]);
        assert_eq!(plan(Compute::F32).checkpoint_bytes(), 3 * GIB, "over all ranks");
    }

    #[test]
    fn adds_up() {
        let plan = plan();
        assert_eq!(plan.total_bytes(), 6 * GIB);
        assert_eq!(plan.optimizer_bytes(), 2 * GIB);
        assert_eq!(plan.working_bytes(), 2 * GIB);
        assert_eq!(plan.checkpoint_bytes(), 12 * ((1 << 28) - 100), "padding is not saved");
    }

    #[test]
    fn a_plan_beyond_64_bits_does_not_wrap() {
        let item = |bytes| ("scores".to_owned(), bytes);
        let plan = MemoryPlan::new(
            1 << 10,
            1 << 10,
            1 << 10,
            Compute::F32,
            [item(u64::MAX - 5), item(u64::MAX - 5)],
        );
        assert_eq!((plan.total_bytes(), plan.working_bytes()), (u64::MAX, u64::MAX));
    }
}
