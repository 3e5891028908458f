//! A GPU, as a record describes it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Compute capability of a device: 9.0 is Hopper.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct ComputeCapability {
    /// Major number: the family.
    pub major: u32,
    /// Minor number, within the family.
    pub minor: u32,
}

impl ComputeCapability {
    /// Architecture that kernels are compiled for, as in `sm_90a`: from 9.0 on with the
    /// instructions that other architectures lack.
    pub fn architecture(self) -> String {
        let specific = if self.major >= 9 { "a" } else { "" };
        format!("sm_{}{}{specific}", self.major, self.minor)
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// One CUDA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceProperties {
    /// Number of the device in this process, which `CUDA_VISIBLE_DEVICES` changes.
    pub ordinal: usize,
    /// Marketing name.
    pub name: String,
    /// Total memory.
    pub memory_bytes: u64,
    /// Compute capability.
    pub compute_capability: ComputeCapability,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// PCI address, as in `0000:3b:00.0`: equal in every process.
    pub pci_bus_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_named_as_nvrtc_does() {
        let architecture = |major, minor| ComputeCapability { major, minor }.architecture();
        assert_eq!(architecture(8, 9), "sm_89");
        assert_eq!(architecture(9, 0), "sm_90a");
        assert_eq!(architecture(12, 1), "sm_121a");
    }
}
