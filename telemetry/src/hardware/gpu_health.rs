//! What the GPUs of a machine say of themselves before a run: once, or as errors while one watches.

use nvml_wrapper::enum_wrappers::device::{MemoryError, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, Nvml};

use super::gpu::{Gpu, alarming_reasons, nvml};
use super::xid;

/// What a GPU says of itself at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuHealth {
    /// ECC errors that were not corrected, since the driver started; `None` without ECC.
    pub uncorrected_errors: Option<u64>,
    /// Whether a row of its memory could not be replaced by a spare one.
    pub remapping_failed: bool,
    /// Whether that waits for a reset.
    pub remapping_waits: bool,
    /// Names of alarming reasons for which clocks are held down; `None` where it does not tell.
    pub throttled: Option<Vec<&'static str>>,
    /// `None` where it does not tell, or where it is divided (MIG) and tells of all instances.
    pub memory: Option<GpuMemoryUse>,
    /// `None` where it does not tell.
    pub lanes: Option<PcieLanes>,
}

/// Who uses the memory of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuMemoryUse {
    /// By processes, this one included; without what the driver keeps for itself.
    pub used_bytes: u64,
    /// Memory that is free.
    pub free_bytes: u64,
    /// Ids of the processes that compute, as the host numbers them; none of containers that this
    /// one may not see.
    pub processes: Vec<u32>,
}

/// Lanes of a GPU's PCIe link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PcieLanes {
    pub current: u32,
    /// As many as GPU and slot have.
    pub max: u32,
}

impl GpuHealth {
    /// Asks the GPU at an address, as in `0000:17:00.0`.
    ///
    /// # Errors
    /// Why it cannot be read.
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

/// GPUs that the driver has lost, each by its address where it is among these, else by its number.
pub fn lost_gpus(pci_bus_ids: &[String]) -> Vec<String> {
    let Ok(nvml) = nvml() else { return Vec::new() };
    let by_address =
        pci_bus_ids.iter().filter(|id| is_lost(nvml.device_by_pci_bus_id(id.as_str())));
    let by_address: Vec<_> = by_address.map(|id| format!("GPU {id}")).collect();
    if by_address.is_empty() { lost_numbers(nvml) } else { by_address }
}

/// A GPU without an address that is known: NVML counts it, and gives no handle of it.
fn lost_numbers(nvml: &'static Nvml) -> Vec<String> {
    let numbers = 0..nvml.device_count().unwrap_or(0);
    let lost = numbers.filter(|number| is_lost(nvml.device_by_index(*number)));
    lost.map(|number| format!("GPU {number}")).collect()
}

/// Some of what NVML tells it still knows of a lost GPU; its temperature it has to ask it.
fn is_lost(device: Result<Device<'static>, NvmlError>) -> bool {
    let answer = device.and_then(|device| device.temperature(TemperatureSensor::Gpu));
    matches!(answer, Err(NvmlError::GpuLost | NvmlError::ResetRequired))
}

/// Waits for XID errors of a GPU from the moment at which it was made: NVML tells no earlier ones.
pub struct XidWatch(Gpu);

impl std::fmt::Debug for XidWatch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("XidWatch").finish_non_exhaustive()
    }
}

impl XidWatch {
    /// Of the GPU at an address, as in `0000:17:00.0`.
    ///
    /// # Errors
    /// Why there is nothing to wait for.
    pub fn new(pci_bus_id: &str) -> Result<Self, String> {
        let gpu = Gpu::open(pci_bus_id)?;
        match gpu.events {
            Some(_) => Ok(Self(gpu)),
            None => Err("its driver tells no XID events".to_owned()),
        }
    }

    /// The error since then that is most likely the cause of the others, in words.
    pub fn error(&mut self) -> Option<String> {
        self.0.refresh();
        (self.0.xid_errors > 0).then(|| xid::name(self.0.last_xid as u32))
    }
}
