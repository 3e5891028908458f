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
pub(crate) const PACKED_WEIGHTS: &str = "packed weights";

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

    /// Bytes that grow with the micro-batch or serve communication: all but the flat buffers.
    pub fn working_bytes(&self) -> u64 {
        sum(&self.items[self.flat_buffers..])
    }

    /// Whether the plan fits into the memory that this rank may use.
    ///
    /// # Errors
    /// A sentence with what is missing and what would help.
    pub fn fits(&self, available_bytes: u64) -> Result<(), String> {
        let total = self.total_bytes();
        if total <= available_bytes {
            return Ok(());
        }
        let (needed, found) = (gib(total), gib(available_bytes));
        let help = self.help(available_bytes);
        Err(format!("one rank needs {needed}, {found} are available\n  hint: {help}"))
    }

    /// What would help: the flat buffers decide whether a smaller micro-batch can.
    fn help(&self, available_bytes: u64) -> String {
        let fixed = self.total_bytes() - self.working_bytes();
        if fixed < available_bytes {
            let working = gib(self.working_bytes());
            let is_packed = self.items.iter().any(|item| item.name == PACKED_WEIGHTS);
            let unpack = if is_packed { "set run.pack_weights = false, " } else { "" };
            return format!(
                "{working} are activations and workspace; {unpack}lower batch.micro_sequences or \
                 batch.sequence_tokens, or start fewer ranks per machine"
            );
        }
        let fixed = gib(fixed);
        format!(
            "{fixed} are weights, gradients and optimizer state; take a smaller model, a machine \
             with more memory, or run.shard_optimizer = true with ranks on more machines"
        )
    }
}

/// What exceeds 64 bits fits nowhere, and stays so.
fn sum(items: &[MemoryItem]) -> u64 {
    items.iter().fold(0, |sum: u64, item| sum.saturating_add(item.bytes))
}

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / (1_u64 << 30) as f64)
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
        assert!(plan.fits(1 << 60).is_err());
    }

    #[test]
    fn a_plan_that_does_not_fit_says_what_helps() {
        assert_eq!(plan().fits(6 * GIB), Ok(()));
        for (available, expected) in
            [(5 * GIB, "batch.micro_sequences"), (3 * GIB, "smaller model")]
        {
            let sentence = plan().fits(available).unwrap_err();
            assert!(sentence.contains(expected), "{sentence}");
            assert!(sentence.contains("GiB are available"), "{sentence}");
            assert!(!sentence.contains("pack_weights"), "{sentence}");
        }
        let packed = (PACKED_WEIGHTS.to_owned(), 2 * GIB);
        let plan = MemoryPlan::new(1 << 28, 1 << 28, 1 << 28, Compute::F32, [packed]);
        assert!(plan.fits(5 * GIB).unwrap_err().contains("set run.pack_weights = false"));
    }
}
