//! A machine, as a record describes it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The machine of one rank; unknown values are `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Host name.
    pub host: String,
    /// Distribution, as in `Debian GNU/Linux 12 (bookworm)`.
    pub operating_system: Option<String>,
    /// Kernel release.
    pub kernel: String,
    /// Machine type, as in `x86_64`.
    pub architecture: String,
    /// Marketing name of the processor.
    pub cpu_model: Option<String>,
    /// Logical processors of the machine, whether or not this process may use them.
    pub cpu_threads: Option<usize>,
    /// Physical cores.
    pub cpu_cores: Option<usize>,
    /// Memory of the machine in bytes.
    pub memory_bytes: Option<u64>,
    /// Instruction-set extensions that the choice of kernels depends on, sorted.
    pub instruction_sets: Vec<String>,
}

/// Properties of a node that could be read, by name, as in `nic.mlx5_0.firmware`. They are equal on
/// nodes that are alike: properties that only identify a node are not among them.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct NodeIdentity(pub BTreeMap<String, String>);

impl NodeIdentity {
    /// Adds a property, unless it is unknown.
    pub fn set(&mut self, name: &str, value: Option<String>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.0.insert(name.to_owned(), value);
        }
    }
}
