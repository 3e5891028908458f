//! `yardstick devices`.

use std::path::PathBuf;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets::NOTHING};
use device::cuda::{self, DeviceProperties, Libraries, Library, Required, Versions};
use models::workload::Compute;
use serde::Serialize;

use super::{print, print_json};
use record::ExitCode;
use record::peaks::PEAKS;
use record::text::number_format::count;
use trainer::failure::Outcome;

/// List the processor, the CUDA devices, and the libraries that training would use.
///
/// If CUDA cannot be used, it prints the reason and still exits with 0.
#[derive(Debug, Args)]
pub(super) struct Devices {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// List the published peaks of GPUs instead, which MFU is a share of: dense TFLOP/s.
    #[arg(long)]
    peaks: bool,
}

impl Devices {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        if self.peaks {
            return if self.json { print_json(&PEAKS) } else { print(peaks().to_string()) };
        }
        let found = Found::on_this_machine();
        if self.json { print_json(&found) } else { print(found.text()) }
    }
}

/// Formats the published peaks.
fn peaks() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "name",
        "memory\nGiB",
        "bf16\nTFLOP/s",
        "fp8\nTFLOP/s",
        "f32\nTFLOP/s",
    ]);
    let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.1}"));
    for peak in PEAKS {
        table.add_row([
            peak.name.to_owned(),
            peak.memory_gib.to_string(),
            rate(Some(peak.bf16_teraflops)),
            rate(peak.fp8_teraflops),
            rate(peak.f32_teraflops),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[derive(Debug, Serialize)]
struct Found {
    cpu: Cpu,
    cuda: Cuda,
}

/// Processor, with the kernels that it supports.
#[derive(Debug, Serialize)]
struct Cpu {
    model: Option<String>,
    cores: Option<usize>,
    threads: Option<usize>,
    memory_bytes: Option<u64>,
    matmul_kernels: MatmulKernels,
}

/// Instruction sets, with the names that they have in a record.
#[derive(Debug, Serialize)]
struct MatmulKernels {
    f32: &'static str,
    bf16: &'static str,
}

#[derive(Debug, Serialize)]
struct Cuda {
    /// Reason why training on CUDA is impossible here; `null` where it is possible.
    unusable: Option<String>,
    devices: Vec<DeviceProperties>,
    libraries: Vec<LibraryRow>,
    versions: Versions,
}

#[derive(Debug, Serialize)]
struct LibraryRow {
    name: &'static str,
    version: Option<String>,
    path: Option<PathBuf>,
    /// Reason why it cannot be used.
    problem: Option<String>,
    /// Copies that were found before and cannot be used, each with the reason.
    passed_over: Vec<String>,
}

impl Found {
    fn on_this_machine() -> Self {
        Self { cpu: Cpu::of_this_machine(), cuda: Cuda::on_this_machine() }
    }

    fn text(&self) -> String {
        let mut parts = vec![self.devices().to_string(), self.cuda.library_table().to_string()];
        parts.extend(self.cuda.notes());
        parts.join("\n\n")
    }

    fn devices(&self) -> Table {
        let mut table = Table::new();
        table.load_style(NOTHING);
        table.set_header([
            "device",
            "name",
            "memory\nGiB",
            "compute\ncapability",
            "PCI bus id",
            "",
        ]);
        table.add_row(self.cpu.row());
        for device in &self.cuda.devices {
            table.add_row([
                format!("cuda:{}", device.ordinal),
                device.name.clone(),
                gibibytes(device.memory_bytes),
                device.compute_capability.to_string(),
                device.pci_bus_id.clone(),
                format!("{} multiprocessors", device.multiprocessors),
            ]);
        }
        for column in 2..=3 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

impl Cpu {
    fn of_this_machine() -> Self {
        let machine = launch::machine();
        Self {
            model: machine.cpu_model,
            cores: machine.cpu_cores,
            threads: machine.cpu_threads,
            memory_bytes: machine.memory_bytes,
            matmul_kernels: MatmulKernels {
                f32: models::fused::matmul_kernel(Compute::F32),
                bf16: models::fused::matmul_kernel(Compute::Bf16),
            },
        }
    }

    fn row(&self) -> [String; 6] {
        let MatmulKernels { f32, bf16 } = self.matmul_kernels;
        let cores = self.cores.map_or("unknown cores".to_owned(), |cores| count(cores, "core"));
        [
            "cpu".to_owned(),
            self.model.clone().unwrap_or_else(|| "unknown".to_owned()),
            self.memory_bytes.map_or("unknown".to_owned(), gibibytes),
            String::new(),
            String::new(),
            format!("{cores}, matmul by {f32} (f32), {bf16} (bf16)"),
        ]
    }
}

impl Cuda {
    /// Opens the libraries, then lists the devices: the list uses the libraries that were opened.
    fn on_this_machine() -> Self {
        let libraries = LIBRARIES.iter().map(LibraryRow::of).collect();
        let devices = cuda::devices();
        let training = Libraries::open(&Required::TRAINING);
        let too_old = devices.as_ref().ok().and_then(|devices| {
            let fit = devices.iter().map(cuda::require_new_enough);
            fit.into_iter().collect::<Result<(), _>>().err()
        });
        let problem = devices.as_ref().err().or(training.as_ref().err()).or(too_old.as_ref());
        Self {
            unusable: problem.map(ToString::to_string),
            libraries,
            versions: Libraries::of_process().versions(),
            devices: devices.unwrap_or_default(),
        }
    }

    fn library_table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(["library", "version", "path"]);
        for row in &self.libraries {
            table.add_row([
                row.name.to_owned(),
                row.version.clone().unwrap_or_else(|| "-".to_owned()),
                row.path
                    .as_ref()
                    .map_or("not usable".to_owned(), |path| path.display().to_string()),
            ]);
        }
        table
    }

    fn notes(&self) -> Vec<String> {
        let module = self.versions.kernel_module.as_ref();
        let module = module.map(|version| format!("NVIDIA's kernel module is version {version}."));
        let reasons = self.libraries.iter().filter_map(|row| row.problem.as_ref());
        let mut notes: Vec<_> = module.into_iter().collect();
        let passed_over = self.libraries.iter().flat_map(|row| &row.passed_over);
        notes.extend(passed_over.map(|copy| format!("Passed over: {copy}.")));
        match &self.unusable {
            Some(reason) => notes.push(format!("CUDA cannot be used: {reason}.")),
            None => {
                notes.extend(reasons.map(|reason| format!("Not needed by every run: {reason}.")))
            }
        }
        notes
    }
}

/// Library, and how it is opened.
struct Listed {
    name: &'static str,
    required: Required,
    opened: fn(&Libraries) -> Option<&Library>,
}

const LIBRARIES: [Listed; 4] = [
    Listed { name: "CUDA driver", required: Required::DEVICES, opened: Libraries::driver },
    Listed { name: "NVRTC", required: Required::COMPILER, opened: Libraries::nvrtc },
    Listed {
        name: "cuBLASLt",
        required: Required { cublaslt: true, ..Required::NONE },
        opened: Libraries::cublaslt,
    },
    Listed {
        name: "NCCL",
        required: Required { nccl: true, ..Required::NONE },
        opened: Libraries::nccl,
    },
];

impl LibraryRow {
    fn of(listed: &Listed) -> Self {
        let result = Libraries::open(&listed.required);
        // A driver without a device is open, and has a version.
        let library = (listed.opened)(Libraries::of_process());
        Self {
            name: listed.name,
            version: library.and_then(Library::version).map(|version| version.to_string()),
            path: library.map(|library| library.path().to_owned()),
            problem: result.err().map(|error| error.to_string()),
            passed_over: library
                .map_or(&[][..], Library::rejected)
                .iter()
                .map(ToString::to_string)
                .collect(),
        }
    }
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 30))
}
