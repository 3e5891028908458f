//! The memory plan of one rank: allocations that constructors record with a counting allocator, by
//! purpose.

use device::{Allocator, Item};
use serde::{Serialize, Serializer};

/// Master weights that the engine computes with, flat.
pub const WEIGHTS: &str = "weights";
/// Master weights of an engine that computes with [`WORKING_WEIGHTS`].
pub const MASTER_WEIGHTS: &str = "master weights";
/// Master weights rounded to the format of the engine, flat.
pub const WORKING_WEIGHTS: &str = "working weights";
/// Windows that sharded weights are gathered into.
pub const WEIGHT_WINDOWS: &str = "windows of weights";
/// Gradients: flat, or of the elements that a rank owns.
pub const GRADIENTS: &str = "gradients";
/// Windows that backward writes sharded gradients to.
pub const GRADIENT_WINDOWS: &str = "windows of gradients";
/// First moments of Adam.
pub const FIRST_MOMENT: &str = "Adam first moment";
/// Second moments of Adam.
pub const SECOND_MOMENT: &str = "Adam second moment";

/// Purposes of flat buffers, whose size follows from the parameters and their division over ranks.
pub const FLAT_BUFFERS: [&str; 8] = [
    WEIGHTS,
    MASTER_WEIGHTS,
    WORKING_WEIGHTS,
    WEIGHT_WINDOWS,
    GRADIENTS,
    GRADIENT_WINDOWS,
    FIRST_MOMENT,
    SECOND_MOMENT,
];
/// Purposes of flat buffers that a sharded optimizer divides among ranks.
pub const SHARDED: [&str; 3] = [MASTER_WEIGHTS, FIRST_MOMENT, SECOND_MOMENT];

/// Peak memory of one rank. Memory that several ranks share counts for one of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// Allocations by purpose.
    #[serde(serialize_with = "with_names")]
    pub items: Vec<Item>,
}

impl MemoryPlan {
    /// The items that have any of these purposes, together.
    pub fn bytes_of(&self, purposes: &[&str]) -> u64 {
        sum(self.items.iter().filter(|item| purposes.contains(&item.purpose)))
    }

    /// Size of all items together.
    pub fn total_bytes(&self) -> u64 {
        sum(&self.items)
    }

    /// Size of all but the flat buffers: memory that grows with the micro-batch or serves
    /// communication.
    pub fn working_bytes(&self) -> u64 {
        sum(self.items.iter().filter(|item| !FLAT_BUFFERS.contains(&item.purpose)))
    }
}

impl From<&Allocator> for MemoryPlan {
    fn from(allocator: &Allocator) -> Self {
        Self { items: allocator.items() }
    }
}

fn with_names<S: Serializer>(items: &[Item], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Named {
        name: &'static str,
        bytes: u64,
    }
    let named = |item: &Item| Named { name: item.purpose, bytes: item.bytes };
    serializer.collect_seq(items.iter().map(named))
}

/// Adds up bytes. A sum above 64 bits fits nowhere, and saturates.
fn sum<'a>(items: impl IntoIterator<Item = &'a Item>) -> u64 {
    items.into_iter().fold(0, |sum: u64, item| sum.saturating_add(item.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(items: &[(&'static str, u64)]) -> MemoryPlan {
        let allocator = Allocator::counting();
        items.iter().for_each(|&(purpose, bytes)| allocator.for_purpose(purpose).record(bytes));
        MemoryPlan::from(&allocator)
    }

    #[test]
    fn flat_buffers_and_what_is_sharded_of_them_are_known_by_purpose() {
        let f32 = plan(&[(WEIGHTS, 1), (GRADIENTS, 2), (FIRST_MOMENT, 4), (SECOND_MOMENT, 8)]);
        let both = [WEIGHTS, MASTER_WEIGHTS];
        assert_eq!((f32.bytes_of(&both), f32.bytes_of(&SHARDED), f32.working_bytes()), (1, 12, 0));
        let bf16 = plan(&[
            (MASTER_WEIGHTS, 1),
            (WORKING_WEIGHTS, 2),
            (FIRST_MOMENT, 4),
            ("logits", 8),
            ("activations", 16),
            ("logits", 32),
        ]);
        assert_eq!((bf16.bytes_of(&both), bf16.bytes_of(&SHARDED)), (1, 5));
        assert_eq!((bf16.working_bytes(), bf16.total_bytes()), (56, 63));
    }

    #[test]
    fn a_plan_beyond_64_bits_does_not_wrap() {
        let plan = plan(&[("scores", u64::MAX - 5), ("logits", u64::MAX - 5)]);
        assert_eq!((plan.total_bytes(), plan.working_bytes()), (u64::MAX, u64::MAX));
    }

    #[test]
    fn json_lists_names_and_bytes() {
        let json = serde_json::json!(plan(&[("logits", 7)]));
        assert_eq!(json, serde_json::json!({"items": [{"name": "logits", "bytes": 7}]}));
    }
}
