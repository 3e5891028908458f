//! The GPU of a rank, through NVIDIA's management library (NVML), which is opened at run time.
//!
//! NVIDIA's NVML API reference (docs.nvidia.com/deploy/nvml-api) defines each figure.
#![allow(unsafe_code)] // one call whose safe wrapper cannot ask for all links of a GPU together

use std::sync::OnceLock;

use device::cuda::Libraries;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PcieUtilCounter, TemperatureSensor,
};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{FieldValueSample, Utilization};
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, EventSet, Nvml};
use nvml_wrapper_sys::bindings::{NVML_DEVICE_MIG_ENABLE, nvmlFieldValue_t};

use super::alert::Alert;
use super::quantity::{MetricDesc, Quantity};
use super::xid;

/// A GPU as its driver sees it.
pub(crate) struct Gpu {
    pub(crate) device: Device<'static>,
    /// Events of XID errors; `None` if the driver does not report them.
    pub(crate) events: Option<EventSet<'static>>,
    /// Number of XID errors since it was opened.
    pub(crate) xid_errors: u32,
    /// Most likely cause in the last burst of XID errors.
    pub(crate) last_xid: u64,
    /// Throttle reasons at the last reading, followed by those at the previous one; `None` if
    /// unknown.
    pub(crate) throttled: Option<ThrottleReasons>,
    throttled_before: Option<ThrottleReasons>,
    utilization: Option<Utilization>,
    /// True if it is divided (MIG): its energy is then that of all instances together.
    pub(crate) is_divided: bool,
    /// Number of uncorrected ECC errors when it was opened.
    uncorrected_before: Option<u64>,
}

const LIBRARY: &str = "libnvidia-ml.so.1";

const THROTTLED: MetricDesc = MetricDesc::gauge(
    "throttled",
    "1 while clocks are held down for the reason, else 0. In the record the mean is the share of \
     the time.",
);
const ECC: MetricDesc =
    MetricDesc::counter("ecc_errors", "ECC errors of memory since the driver started.");
const PCIE: MetricDesc = MetricDesc::gauge(
    "pcie_bytes_per_second",
    "Rate over PCIe, over the last 20 ms before a reading.",
);
const NVLINK: MetricDesc = MetricDesc::counter("nvlink_bytes", "Bytes of data over all NVLinks.");
const NVLINK_ERRORS: MetricDesc = MetricDesc::counter("nvlink_errors", "Errors of all NVLinks.");

/// Quantities that are read from a GPU.
pub(crate) const QUANTITIES: [Quantity<Gpu>; 32] = [
    MetricDesc::gauge(
        "utilization_ratio",
        "Share of the last second or less in which a kernel ran.",
    )
    .charted()
    .read(|gpu| Some(f64::from(gpu.utilization.as_ref()?.gpu) / 100.0)),
    MetricDesc::gauge("memory_utilization_ratio", "The same in which memory was read or written.")
        .read(|gpu| Some(f64::from(gpu.utilization.as_ref()?.memory) / 100.0)),
    MetricDesc::gauge("memory_used_bytes", "Memory in use by all processes.")
        .read(|gpu| Some(gpu.device.memory_info().ok()?.used as f64)),
    MetricDesc::gauge("power_watts", "Power draw.")
        .charted()
        .read(|gpu| Some(f64::from(gpu.device.power_usage().ok()?) / 1e3)),
    MetricDesc::gauge("power_limit_watts", "Power limit in force.")
        .read(|gpu| Some(f64::from(gpu.device.enforced_power_limit().ok()?) / 1e3)),
    MetricDesc::gauge("power_limit_default_watts", "Default power limit of the GPU.")
        .read(|gpu| Some(f64::from(gpu.device.power_management_limit_default().ok()?) / 1e3)),
    MetricDesc::counter("energy_joules", "Energy since the driver started.").read(Gpu::joules),
    MetricDesc::gauge("sm_clock_hertz", "Clock of the multiprocessors.")
        .charted()
        .read(|gpu| Some(f64::from(gpu.device.clock_info(Clock::SM).ok()?) * 1e6)),
    MetricDesc::gauge("sm_clock_max_hertz", "Highest clock of the multiprocessors.")
        .read(|gpu| Some(f64::from(gpu.device.max_clock_info(Clock::SM).ok()?) * 1e6)),
    MetricDesc::gauge("memory_clock_hertz", "Clock of the memory.")
        .read(|gpu| Some(f64::from(gpu.device.clock_info(Clock::Memory).ok()?) * 1e6)),
    MetricDesc::gauge("temperature_celsius", "Temperature of the chip.")
        .charted()
        .read(|gpu| Some(f64::from(gpu.device.temperature(TemperatureSensor::Gpu).ok()?))),
    MetricDesc::gauge("memory_temperature_celsius", "Temperature of the memory.")
        .read(|gpu| gpu.field(field_id::NVML_FI_DEV_MEMORY_TEMP, Scope::Gpu)),
    THROTTLED.of("reason", REASONS[0].name).read(|gpu| gpu.is_held_down(&REASONS[0])),
    THROTTLED.of("reason", REASONS[1].name).read(|gpu| gpu.is_held_down(&REASONS[1])),
    THROTTLED.of("reason", REASONS[2].name).read(|gpu| gpu.is_held_down(&REASONS[2])),
    THROTTLED.of("reason", REASONS[3].name).read(|gpu| gpu.is_held_down(&REASONS[3])),
    THROTTLED.of("reason", REASONS[4].name).read(|gpu| gpu.is_held_down(&REASONS[4])),
    THROTTLED.of("reason", REASONS[5].name).read(|gpu| gpu.is_held_down(&REASONS[5])),
    THROTTLED.of("reason", REASONS[6].name).read(|gpu| gpu.is_held_down(&REASONS[6])),
    ECC.of("kind", "corrected").read(|gpu| Some(gpu.ecc(MemoryError::Corrected)? as f64)),
    ECC.of("kind", "uncorrected").read(|gpu| Some(gpu.ecc(MemoryError::Uncorrected)? as f64)),
    MetricDesc::counter("xid_errors", "XID errors of the driver since the attempt started.")
        .read(|gpu| gpu.events.as_ref().map(|_| f64::from(gpu.xid_errors))),
    MetricDesc::gauge("last_xid", "Number of the last XID error, 0 for none.")
        .read(|gpu| gpu.events.as_ref().map(|_| gpu.last_xid as f64)),
    PCIE.of("direction", "transmit").read(|gpu| gpu.pcie(PcieUtilCounter::Send)),
    PCIE.of("direction", "receive").read(|gpu| gpu.pcie(PcieUtilCounter::Receive)),
    MetricDesc::counter("pcie_replays", "Packets sent again over PCIe since the driver started.")
        .read(|gpu| Some(f64::from(gpu.device.pcie_replay_counter().ok()?))),
    MetricDesc::gauge("pcie_link_width", "Lanes of PCIe in use.")
        .read(|gpu| Some(f64::from(gpu.device.current_pcie_link_width().ok()?))),
    NVLINK.of("direction", "transmit").read(|gpu| {
        Some(gpu.field(field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, Scope::AllLinks)? * 1024.0)
    }),
    NVLINK.of("direction", "receive").read(|gpu| {
        Some(gpu.field(field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, Scope::AllLinks)? * 1024.0)
    }),
    NVLINK_ERRORS
        .of("kind", "crc")
        .read(|gpu| gpu.field(field_id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, Scope::Gpu)),
    NVLINK_ERRORS
        .of("kind", "replay")
        .read(|gpu| gpu.field(field_id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, Scope::Gpu)),
    NVLINK_ERRORS
        .of("kind", "recovery")
        .read(|gpu| gpu.field(field_id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, Scope::Gpu)),
];

/// A reason for which clocks are held down.
struct Reason {
    name: &'static str,
    flag: ThrottleReasons,
}

impl Reason {
    fn is_alarming(&self) -> bool {
        record::hardware::is_alarming(self.name)
    }
}

const fn reason(name: &'static str, flag: ThrottleReasons) -> Reason {
    Reason { name, flag }
}

const REASONS: [Reason; 7] = [
    reason("sw_power_cap", ThrottleReasons::SW_POWER_CAP),
    reason("hw_slowdown", ThrottleReasons::HW_SLOWDOWN),
    reason("sw_thermal_slowdown", ThrottleReasons::SW_THERMAL_SLOWDOWN),
    reason("hw_thermal_slowdown", ThrottleReasons::HW_THERMAL_SLOWDOWN),
    reason("hw_power_brake", ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN),
    reason("sync_boost", ThrottleReasons::SYNC_BOOST),
    reason("applications_clocks", ThrottleReasons::APPLICATIONS_CLOCKS_SETTING),
];

/// Names of the alarming reasons in these bits.
pub(crate) fn alarming_reasons(bits: u64) -> Vec<&'static str> {
    let found = ThrottleReasons::from_bits_truncate(bits);
    let alarming = REASONS.iter().filter(|reason| reason.is_alarming());
    alarming.filter(|reason| found.contains(reason.flag)).map(|reason| reason.name).collect()
}

/// Scope of an NVML field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Gpu,
    AllLinks,
}

/// XID error that follows another one: the driver cleans up.
const AFTER_ANOTHER: u64 = 45;

/// Number that NVML reports for an unknown XID error.
const UNKNOWN_XID: u64 = xid::UNKNOWN as u64;

/// Returns the NVML of this process. It is never closed.
pub(crate) fn nvml() -> Result<&'static Nvml, String> {
    static NVML: OnceLock<Result<Nvml, String>> = OnceLock::new();
    let open = || {
        let mut error = None;
        for path in Libraries::of_process().candidates(LIBRARY) {
            match Nvml::builder().lib_path(path.as_os_str()).init() {
                Ok(nvml) => return Ok(nvml),
                Err(NvmlError::LibloadingError(_)) => {} // another one may be found
                Err(failed) => {
                    error.get_or_insert(format!("{}: {failed}", path.display()));
                }
            }
        }
        Err(error.unwrap_or_else(|| format!("{LIBRARY} was not found")))
    };
    NVML.get_or_init(open).as_ref().map_err(Clone::clone)
}

impl Gpu {
    /// Opens the GPU at an address, as in `0000:17:00.0`.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub(crate) fn open(pci_bus_id: &str) -> Result<Self, String> {
        let nvml = nvml()?;
        let failed = |error: NvmlError| format!("NVML, GPU {pci_bus_id}: {error}");
        let device = nvml.device_by_pci_bus_id(pci_bus_id).map_err(failed)?;
        let register = |set| device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok();
        let events = nvml.create_event_set().ok().and_then(register);
        let mut gpu = Self {
            is_divided: device.mig_mode().is_ok_and(|mode| mode.current == NVML_DEVICE_MIG_ENABLE),
            device,
            events,
            xid_errors: 0,
            last_xid: 0,
            throttled: None,
            throttled_before: None,
            utilization: None,
            uncorrected_before: None,
        };
        gpu.uncorrected_before = gpu.ecc(MemoryError::Uncorrected);
        gpu.refresh();
        Ok(gpu)
    }

    /// Reads the values that several quantities share, and the XID errors since the last refresh.
    pub(crate) fn refresh(&mut self) {
        self.throttled_before = self.throttled;
        self.throttled = self.device.current_throttle_reasons().ok();
        self.utilization = self.device.utilization_rates().ok();
        let new: Vec<u64> = std::iter::from_fn(|| self.next_xid()).collect();
        let cause = new.iter().find(|xid| **xid != AFTER_ANOTHER).or(new.first());
        self.last_xid = cause.copied().unwrap_or(self.last_xid);
        self.xid_errors += new.len() as u32;
    }

    fn next_xid(&self) -> Option<u64> {
        let event = self.events.as_ref()?.wait(0).ok()?;
        Some(match event.event_data {
            Some(XidError::Value(xid)) => xid,
            Some(XidError::Unknown) | None => UNKNOWN_XID,
        })
    }

    /// Returns the alert for the other ranks. Clocks count as throttled after two such readings in
    /// a row: a change of clocks looks like throttling for a moment, too.
    pub(crate) fn alert(&self) -> Alert {
        let uncorrected = self.ecc(MemoryError::Uncorrected).zip(self.uncorrected_before);
        let twice = self.throttled.zip(self.throttled_before).map(|(now, before)| now & before);
        let alarming = REASONS.iter().filter(|reason| reason.is_alarming());
        let alarming = alarming.fold(ThrottleReasons::empty(), |all, reason| all | reason.flag);
        Alert {
            throttled: twice.map_or(0, |reasons| (reasons & alarming).bits()),
            xid_errors: self.xid_errors,
            last_xid: self.last_xid as u32,
            uncorrected_errors: uncorrected.map_or(0, |(now, before)| now.saturating_sub(before)),
        }
    }

    /// Returns whether an NVML field that is 0 or 1 is 1.
    pub(crate) fn is_set(&self, field: u32) -> bool {
        self.field(field, Scope::Gpu).is_some_and(|value| value > 0.0)
    }

    fn is_held_down(&self, reason: &Reason) -> Option<f64> {
        Some(f64::from(u8::from(self.throttled?.contains(reason.flag))))
    }

    fn joules(&self) -> Option<f64> {
        let millijoules = self.device.total_energy_consumption().ok()?;
        (!self.is_divided).then_some(millijoules as f64 / 1e3)
    }

    pub(crate) fn ecc(&self, kind: MemoryError) -> Option<u64> {
        self.device.total_ecc_errors(kind, EccCounter::Volatile).ok()
    }

    /// Returns the rate over PCIe, which NVML counts in kB.
    fn pcie(&self, direction: PcieUtilCounter) -> Option<f64> {
        Some(f64::from(self.device.pcie_throughput(direction).ok()?) * 1e3)
    }

    fn field(&self, field: u32, scope: Scope) -> Option<f64> {
        let call = nvml().ok()?.lib().nvmlDeviceGetFieldValues.as_ref().ok()?;
        // SAFETY: a structure of numbers, for which zeros are valid.
        let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        value.fieldId = field;
        value.scopeId = if scope == Scope::AllLinks { u32::MAX } else { 0 };
        // SAFETY: the handle is valid as long as the library is open; it writes to one value.
        let status = unsafe { call(self.device.handle(), 1, &raw mut value) };
        if status != 0 {
            return None;
        }
        match FieldValueSample::try_from(value).ok()?.value.ok()? {
            SampleValue::F64(value) => Some(value),
            SampleValue::U32(value) => Some(f64::from(value)),
            SampleValue::U64(value) => Some(value as f64),
            SampleValue::I64(value) => Some(value as f64),
        }
    }
}
