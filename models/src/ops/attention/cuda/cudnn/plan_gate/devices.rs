//! Properties of absent devices, as cuDNN takes them.

use device::cuda::ComputeCapability;
use device::cuda::cudnn::{Attribute, Builder, Cudnn, Kind};
use serde_json::json;

use crate::ops::attention::cuda::cudnn::plan::{Target, TargetDevice};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Architecture {
    Ampere,
    Hopper,
    Blackwell,
}

impl Architecture {
    /// The number of the engine that adds in a fixed order and its stages, by the sources that
    /// `engine.rs` names.
    pub(super) fn deterministic(self) -> (i64, i64) {
        match self {
            Self::Ampere => (12, 2),
            Self::Hopper => (13, 4),
            Self::Blackwell => (14, 2),
        }
    }
}

/// Published properties of an NVIDIA device, as far as devices differ.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) architecture: Architecture,
    name: &'static str,
    capability: ComputeCapability,
    multiprocessors: u32,
    memory_bytes: u64,
    shared_bytes_of_block: u32,
    l2_bytes: u64,
    memory_bus_bits: u32,
}

pub(super) const DEVICES: [Device; 3] = [
    Device {
        architecture: Architecture::Ampere,
        name: "NVIDIA A100-SXM4-80GB",
        capability: ComputeCapability { major: 8, minor: 0 },
        multiprocessors: 108,
        memory_bytes: 80 << 30,
        shared_bytes_of_block: 163 << 10,
        l2_bytes: 40 << 20,
        memory_bus_bits: 5120,
    },
    Device {
        architecture: Architecture::Hopper,
        name: "NVIDIA H100 80GB HBM3",
        capability: ComputeCapability { major: 9, minor: 0 },
        multiprocessors: 132,
        memory_bytes: 80 << 30,
        shared_bytes_of_block: 227 << 10,
        l2_bytes: 50 << 20,
        memory_bus_bits: 5120,
    },
    Device {
        architecture: Architecture::Blackwell,
        name: "NVIDIA B200",
        capability: ComputeCapability { major: 10, minor: 0 },
        multiprocessors: 148,
        memory_bytes: 180 << 30,
        shared_bytes_of_block: 227 << 10,
        l2_bytes: 126 << 20,
        memory_bus_bits: 8192,
    },
];

impl Device {
    /// Plans are made for it.
    pub(super) fn target(&self, cudnn: Cudnn) -> Target {
        let properties = Builder::new(cudnn, Kind::DEVICE_PROPERTIES).unwrap();
        let properties = properties.text(Attribute::DEVICE_PROPERTIES_JSON, &self.json()).unwrap();
        let device = TargetDevice::Described(properties.finalize().unwrap());
        Target { cudnn, capability: self.capability, device }
    }

    fn json(&self) -> String {
        let ComputeCapability { major, minor } = self.capability;
        let properties = json!({
            "cudaDeviceId": 0,
            "deviceName": self.name,
            "deviceVer": major * 100 + minor * 10,
            "driverVer": 13_000,
            "runtimeVer": 13_000,
            "maxGridSize": [2_147_483_647, 65_535, 65_535],
            "maxBlockSize": [1024, 1024, 64],
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerSM": 2048,
            "maxCtasPerSM": 32,
            "regsPerBlock": 65_536,
            "maxRegistersPerSM": 65_536,
            "maxSharedMemoryPerBlock": 49_152,
            "maxSharedMemoryPerBlockOptin": self.shared_bytes_of_block,
            "reservedSharedMemoryPerBlock": 1024,
            "multiProcessorCount": self.multiprocessors,
            "smCountOrigin": 0,
            "warpSize": 32,
            "totalGlobalMem": self.memory_bytes,
            "l2CacheSize": self.l2_bytes,
            "memoryBusWidth": self.memory_bus_bits,
            "smClockRateKHz": 1_410_000,
            "memClockRateKHz": 1_593_000,
            "pciDeviceId": 0,
            "isTccDriver": 0,
            "supportCoopLaunch": 1,
        });
        properties.to_string()
    }
}
