//! Health of a machine's GPUs before a run: read once, or watched for errors.

use nvml_wrapper::enum_wrappers::device::{MemoryError, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, Nvml};

use super::gpu::{Gpu, alarming_reasons, nvml};
use super::xid;

/// Health of a GPU at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuHealth {
    /// Number of uncorrected ECC errors since the driver started; `None` without ECC.
    pub uncorrected_errors: Option<u64>,
    /// True if a row of its memory could not be remapped to a spare one.
    pub remapping_failed: bool,
    /// True if a remapping waits for a reset.
    pub remapping_waits: bool,
    /// Names of alarming throttle reasons; `None` if it does not report them.
    pub throttled: Option<Vec<&'static str>>,
    /// Memory use; `None` if it does not report it, or is divided (MIG) and reports all instances.
    pub memory: Option<GpuMemoryUse>,
    /// PCIe lanes; `None` if it does not report them.
    pub lanes: Option<PcieLanes>,
}

/// Use of a GPU's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuMemoryUse {
    /// Memory used by processes, this one included; without the memory that the driver keeps for
    /// itself.
    pub used_bytes: u64,
    /// Free memory.
    pub free_bytes: u64,
    /// Ids of the processes that compute, as the host numbers them; without those in containers
    /// that this process may not see.
    pub processes: Vec<u32>,
}

/// Lanes of a GPU's PCIe link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PcieLanes {
    pub current: u32,
    /// Number of lanes that GPU and slot have.
    pub max: u32,
}

impl GpuHealth {
    /// Reads the health of the GPU at an address, as in `0000:17:00.0`.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub fn of(pci_bus_id: &str) -> Result<Self, String> {
        let gpu = Gpu::open(pci_bus_id)?;
        let reasons = gpu.throttled.map(|reasons| alarming_reasons(reasons.bits()));
        Ok(Self {
            uncorrected_errors: gpu.ecc(MemoryError::Uncorrected),
            remapping_failed: gpu.is_set(field_id::NVML_FI_DEV_REMAPPED_FAILURE),
            remapping_waits: gpu.is_set(field_id::NVML_FI_DEV_REMAPPED_PENDING),
            throttled: reasons,
            memory: (!gpu.is_divided).then(|| memory(&gpu.device)).flatten(),
            lanes: lanes(&gpu.device),
        })
    }
}

fn memory(device: &Device<'_>) -> Option<GpuMemoryUse> {
    let memory = device.memory_info().ok()?;
    let processes = device.running_compute_processes().unwrap_or_default();
    Some(GpuMemoryUse {
        used_bytes: memory.used,
        free_bytes: memory.free,
        processes: processes.iter().map(|process| process.pid).collect(),
    })
}

fn lanes(device: &Device<'_>) -> Option<PcieLanes> {
    let current = device.current_pcie_link_width().ok()?;
    Some(PcieLanes { current, max: device.max_pcie_link_width().ok()? })
}

/// Lists GPUs that the driver has lost, each by its address if it is in `pci_bus_ids`, else by its
/// number.
pub fn lost_gpus(pci_bus_ids: &[String]) -> Vec<String> {
    let Ok(nvml) = nvml() else { return Vec::new() };
    let by_address =
        pci_bus_ids.iter().filter(|id| is_lost(nvml.device_by_pci_bus_id(id.as_str())));
    let by_address: Vec<_> = by_address.map(|id| format!("GPU {id}")).collect();
    if by_address.is_empty() { lost_numbers(nvml) } else { by_address }
}

/// Lists lost GPUs without a known address: NVML counts them, but gives no handle.
fn lost_numbers(nvml: &'static Nvml) -> Vec<String> {
    let numbers = 0..nvml.device_count().unwrap_or(0);
    let lost = numbers.filter(|number| is_lost(nvml.device_by_index(*number)));
    lost.map(|number| format!("GPU {number}")).collect()
}

/// Returns whether a GPU is lost. NVML still knows some properties of a lost GPU, but has to query
/// the GPU for its temperature.
fn is_lost(device: Result<Device<'static>, NvmlError>) -> bool {
    let answer = device.and_then(|device| device.temperature(TemperatureSensor::Gpu));
    matches!(answer, Err(NvmlError::GpuLost | NvmlError::ResetRequired))
}

/// Watch for XID errors of a GPU since its creation: NVML reports no earlier errors.
pub struct XidWatch(Gpu);

impl std::fmt::Debug for XidWatch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("XidWatch").finish_non_exhaustive()
    }
}

impl XidWatch {
    /// Creates a watch of the GPU at an address, as in `0000:17:00.0`.
    ///
    /// # Errors
    /// The reason why XID errors cannot be watched.
    pub fn new(pci_bus_id: &str) -> Result<Self, String> {
        let gpu = Gpu::open(pci_bus_id)?;
        match gpu.events {
            Some(_) => Ok(Self(gpu)),
            None => Err("its driver reports no XID events".to_owned()),
        }
    }

    /// Returns the most likely cause of the errors since its creation, in words.
    pub fn error(&mut self) -> Option<String> {
        self.0.refresh();
        (self.0.xid_errors > 0).then(|| xid::name(self.0.last_xid as u32))
    }
}
