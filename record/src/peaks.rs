//! Published peaks of GPUs, for MFU, and their memory sizes, to find workloads that cannot fit.
//!
//! Rates are those of dense matrix products in the makers' data sheets, half of the rate where one
//! is stated "with sparsity": A100 (nvidia-a100-datasheet-us, 2021), H100 (h100-datasheet, 2024),
//! H200 (h200-datasheet, 2024), GH200 (grace-hopper-superchip-datasheet, 2024), L4, L40S, A10, A30,
//! A40 (their data sheets), B200 (HGX B200, 2024), B300 (HGX B300, 2025: 36 PFLOP/s with sparsity
//! for eight), GB200 and GB300 (GB200 NVL72, GB300 NVL72, 2025: 360 PFLOP/s with sparsity for 72).
//! Of RTX PRO 6000 they are an eighth of the rate in fp4 with sparsity: 4,030 TFLOP/s of 24,064
//! cores at 2.617 GHz, and 3,511 in the data sheet of the Max-Q edition, 2025; that of the Server
//! edition rounds too much. MI300X, MI325X and MI355X are those of AMD's data sheets (2023, 2024,
//! 2025), which are those of their compute units: 304 at 2.1 GHz with 4,096 FLOP a clock in fp8,
//! and 256 at 2.4 GHz with 8,192 (AMD at ISSCC, 2026).
//! Products in f32 are fused multiply-adds of the ordinary cores: this program does not use TF32.
//!
//! This program computes in bf16 or f32, and on no GPU of AMD: those peaks, and the ones in fp8,
//! are what other programs' figures are read with.
//!
//! Memory sizes are the GB of the same data sheets, which are 2^30 bytes: the driver offers a few
//! percent less. Of B300 it is what the driver offers (275,040 MiB), of GB200 and GB300 the memory
//! of a rack divided by its GPUs.
//!
//! Names are those of the driver, and must match as a whole: an H20 is not an H200, and a GPU that
//! is not listed has no peak.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::RankRecord;
use crate::compute::Compute;

/// Published peak of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Peak {
    /// Name that the driver reports.
    pub name: &'static str,
    /// Memory in GiB.
    pub memory_gib: u64,
    /// TFLOP/s in bf16.
    pub bf16_teraflops: f64,
    /// TFLOP/s in fp8; `null` where the GPU has none.
    pub fp8_teraflops: Option<f64>,
    /// TFLOP/s in f32; `null` where no data sheet was found.
    pub f32_teraflops: Option<f64>,
}

const fn peak(
    name: &'static str,
    memory_gib: u64,
    bf16_teraflops: f64,
    fp8_teraflops: Option<f64>,
    f32_teraflops: Option<f64>,
) -> Peak {
    Peak { name, memory_gib, bf16_teraflops, fp8_teraflops, f32_teraflops }
}

/// All known peaks.
pub const PEAKS: [Peak; 26] = [
    peak("NVIDIA A100-SXM4-40GB", 40, 312.0, None, Some(19.5)),
    peak("NVIDIA A100-SXM4-80GB", 80, 312.0, None, Some(19.5)),
    peak("NVIDIA A100-PCIE-40GB", 40, 312.0, None, Some(19.5)),
    peak("NVIDIA A100 80GB PCIe", 80, 312.0, None, Some(19.5)),
    peak("NVIDIA H100 80GB HBM3", 80, 989.5, Some(1979.0), Some(67.0)),
    peak("NVIDIA H100 PCIe", 80, 756.5, Some(1513.0), Some(51.0)),
    peak("NVIDIA H100 NVL", 94, 835.5, Some(1670.5), Some(60.0)),
    peak("NVIDIA H200", 141, 989.5, Some(1979.0), Some(67.0)),
    peak("NVIDIA H200 NVL", 141, 835.5, Some(1670.5), Some(60.0)),
    peak("NVIDIA GH200 120GB", 96, 989.5, Some(1979.0), Some(67.0)),
    peak("NVIDIA GH200 480GB", 96, 989.5, Some(1979.0), Some(67.0)),
    peak("NVIDIA GH200 144G HBM3e", 144, 989.5, Some(1979.0), Some(67.0)),
    peak("NVIDIA B200", 180, 2250.0, Some(4500.0), None),
    peak("NVIDIA B300 SXM6 AC", 268, 2250.0, Some(4500.0), None),
    peak("NVIDIA GB200", 186, 2500.0, Some(5000.0), None),
    peak("NVIDIA GB300", 277, 2500.0, Some(5000.0), None),
    peak("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 96, 503.8, Some(1007.6), Some(126.0)),
    peak(
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        96,
        438.9,
        Some(877.8),
        Some(110.0),
    ),
    peak("NVIDIA L4", 24, 121.0, Some(242.5), Some(30.3)),
    peak("NVIDIA L40S", 48, 362.0, Some(733.0), Some(91.6)),
    peak("NVIDIA A10", 24, 125.0, None, Some(31.2)),
    peak("NVIDIA A30", 24, 165.0, None, Some(10.3)),
    peak("NVIDIA A40", 48, 149.7, None, Some(37.4)),
    peak("AMD Instinct MI300X", 192, 1307.4, Some(2614.9), Some(163.4)),
    peak("AMD Instinct MI325X", 256, 1307.4, Some(2614.9), Some(163.4)),
    peak("AMD Instinct MI355X", 288, 2516.6, Some(5033.2), Some(157.3)),
];

/// Published peak of a GPU in FLOP/s, if there is one.
fn published_flops_per_second(name: &str, compute: Compute) -> Option<f64> {
    let peak = PEAKS.iter().find(|peak| peak.name == name)?;
    let teraflops = match compute {
        Compute::F32 => peak.f32_teraflops,
        Compute::Bf16 => Some(peak.bf16_teraflops),
    };
    teraflops.map(|teraflops| teraflops * 1e12)
}

/// Published size of a GPU's memory in bytes, by its name in the label `nvidia.com/gpu.product` of
/// NVIDIA's GPU feature discovery: dashes for spaces.
pub fn memory_bytes_of_product(label: &str) -> Option<u64> {
    let gpu = PEAKS.iter().find(|peak| peak.name.replace(' ', "-") == label)?;
    Some(gpu.memory_gib << 30)
}

/// Published peak of one rank in FLOP/s: its share, if ranks share GPUs. `None` if a rank has no
/// GPU, or the GPUs differ or have no published peak.
pub fn of_a_rank(ranks: &[RankRecord], compute: Compute) -> Option<f64> {
    let devices: Option<Vec<_>> = ranks.iter().map(|rank| rank.device.as_ref()).collect();
    let devices = devices?;
    let first = devices.first()?;
    if devices.iter().any(|device| device.name != first.name) {
        return None;
    }
    let places = ranks.iter().zip(&devices).map(|(rank, device)| (&rank.host, &device.pci_bus_id));
    let gpus = places.collect::<BTreeSet<_>>().len();
    let peak = published_flops_per_second(&first.name, compute)?;
    Some(peak * gpus as f64 / ranks.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Units, and what one does in a clock: another source than the data sheets.
    #[test]
    fn rates_of_amd_are_those_of_their_compute_units() {
        for (name, units, gigahertz, fp8, f32) in [
            ("AMD Instinct MI300X", 304.0, 2.1, 4096.0, 256.0),
            ("AMD Instinct MI325X", 304.0, 2.1, 4096.0, 256.0),
            ("AMD Instinct MI355X", 256.0, 2.4, 8192.0, 256.0),
        ] {
            let peak = PEAKS.iter().find(|peak| peak.name == name).unwrap();
            let is_of_units = |published: f64, a_clock: f64| {
                (published - units * gigahertz * a_clock / 1e3).abs() < 0.06
            };
            assert!(is_of_units(peak.fp8_teraflops.unwrap(), fp8), "{peak:?}");
            assert!(is_of_units(peak.bf16_teraflops, fp8 / 2.0), "{peak:?}");
            assert!(is_of_units(peak.f32_teraflops.unwrap(), f32), "{peak:?}");
        }
    }

    #[test]
    fn only_whole_names_have_a_peak() {
        let bf16 = |name| published_flops_per_second(name, Compute::Bf16);
        assert_eq!(bf16("NVIDIA H200"), Some(989.5e12));
        assert_eq!(published_flops_per_second("NVIDIA H200", Compute::F32), Some(67e12));
        for unknown in ["NVIDIA H20", "NVIDIA H200 MIG 1g.18gb", "H200", ""] {
            assert_eq!(bf16(unknown), None, "{unknown}");
        }
        assert_eq!(memory_bytes_of_product("NVIDIA-H100-80GB-HBM3"), Some(80 << 30));
        for peak in PEAKS {
            let Peak { bf16_teraflops, fp8_teraflops, .. } = peak;
            let ratio = fp8_teraflops.map_or(2.0, |fp8| fp8 / bf16_teraflops);
            assert!((1.99..2.03).contains(&ratio), "{peak:?}: fp8 has twice the rate");
        }
        let mut names: Vec<_> = PEAKS.iter().map(|peak| peak.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PEAKS.len(), "each once");
    }
}
