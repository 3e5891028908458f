//! Compiles every kernel with the NVRTC of this process, and compares with the budgets.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;

use device::cuda::nvrtc::{self, Source};
use device::cuda::{ComputeCapability, Error, Libraries, Required};

use crate::budgets;
use crate::ptxas::{self, Usage};
use crate::sass;
use crate::sources::{self, File};
use crate::wheel_folder;

/// The first architecture with bf16 is tested, and all from this one on. Those between differ from
/// the first in sizes that no kernel depends on.
const OLDEST: u32 = 80;
const EVERY_FROM: u32 = 90;

/// Resources of a kernel on one architecture, or the most on several.
struct Measured {
    /// The file and its options.
    variant: String,
    architecture: String,
    usage: Usage,
}

/// Compiles everything, prints a table, and panics with all violations at once.
pub(crate) fn run() {
    let architectures = architectures();
    let libraries = Libraries::open(&Required::COMPILER).unwrap();
    println!("NVRTC {}, {}", libraries.versions().nvrtc.unwrap(), architectures.join(" "));
    let headers = sources::headers();
    let headers: Vec<_> = headers.iter().map(|file| (&*file.name, &*file.text)).collect();
    let mut violations = Vec::new();
    let mut measured = Vec::new();
    for file in sources::all() {
        for options in sources::variants(&file.name) {
            let variant = Variant { file: &file, headers: &headers, options };
            for architecture in
                architectures.iter().filter(|name| sources::is_for(&file.name, name))
            {
                match variant.compile(architecture) {
                    Ok(compiled) => {
                        measured.extend(compiled.kernels);
                        violations.extend(compiled.complaints);
                    }
                    Err(error) => violations.push(error.to_string()),
                }
            }
        }
    }
    println!("{}", table(&measured));
    violations.extend(over_budget(&measured));
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

/// Tested architectures by the program's names, ascending.
fn architectures() -> Vec<String> {
    let supported = nvrtc::supported_architectures().unwrap();
    let tested = supported.into_iter().filter(|&number| number == OLDEST || number >= EVERY_FROM);
    let capability = |number| ComputeCapability { major: number / 10, minor: number % 10 };
    let architectures: Vec<_> = tested.map(|number| capability(number).architecture()).collect();
    for expected in ["sm_80", "sm_90a", "sm_100a"] {
        assert!(architectures.iter().any(|found| found == expected), "{architectures:?}");
    }
    architectures
}

/// Outcome of one compilation.
struct Compiled {
    /// The resources of each kernel.
    kernels: Vec<Measured>,
    complaints: Vec<String>,
}

/// One file with some options.
struct Variant<'a> {
    file: &'a File,
    headers: &'a [(&'a str, &'a str)],
    options: &'static [&'static str],
}

impl Variant<'_> {
    /// Compiles the file for an architecture.
    fn compile(&self, architecture: &str) -> Result<Compiled, Error> {
        let options: Vec<_> = self.options.iter().chain(&["--ptxas-options=-v"]).copied().collect();
        let variant = self.to_string();
        let File { text, .. } = self.file;
        let source = Source { name: &variant, text, headers: self.headers, options: &options };
        let compiled = nvrtc::compile(&source, architecture)?;
        assert!(compiled.cubin.starts_with(b"\x7fELF"), "{variant} {architecture}: no cubin");
        let usages = ptxas::usages(&compiled.log);
        assert!(!usages.is_empty(), "{variant} {architecture}: no kernel in\n{}", compiled.log);
        let measured = usages.into_iter().map(|usage| Measured {
            variant: variant.clone(),
            architecture: architecture.to_owned(),
            usage,
        });
        let mut complaints: Vec<_> = compiled.complaints().map(str::to_owned).collect();
        if sources::uses_wgmma(&self.file.name) {
            complaints.extend(uses_of_registers_in_flight(&compiled.cubin));
        }
        for complaint in &mut complaints {
            complaint.insert_str(0, &format!("{variant} {architecture}: "));
        }
        Ok(Compiled { kernels: measured.collect(), complaints })
    }
}

/// Uses of registers by the machine code while products by wgmma use them.
fn uses_of_registers_in_flight(cubin: &[u8]) -> Vec<String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(cubin).unwrap();
    let nvdisasm = wheel_folder("cu13").join("bin/nvdisasm");
    let output = Command::new(&nvdisasm).arg("-c").arg(file.path()).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{}: {error}: run scripts/setup.sh test", nvdisasm.display())
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nvdisasm: {}: {errors}", output.status);
    let disassembly = String::from_utf8(output.stdout).unwrap();
    let kernels = sass::kernels(&disassembly);
    assert_eq!(kernels.len(), 3, "{errors}");
    assert!(kernels.iter().all(|kernel| kernel.left_operands() > 0), "no left operands are seen");
    kernels.iter().flat_map(sass::Kernel::violations).collect()
}

impl std::fmt::Display for Variant<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {}", self.file.name, self.options.join(" "))
    }
}

fn over_budget(measured: &[Measured]) -> Vec<String> {
    let mut violations = Vec::new();
    let mut unknown = BTreeSet::new();
    for Measured { variant, architecture, usage } in measured {
        match budgets::of(&usage.kernel) {
            Some(budget) => violations.extend(
                budget.violation(usage).map(|text| format!("{variant} {architecture}: {text}")),
            ),
            None => drop(unknown.insert(&usage.kernel)),
        }
    }
    violations.extend(unknown.iter().map(|kernel| format!("{kernel} has no budget")));
    violations.extend(budgets::unused(measured.iter().map(|one| one.usage.kernel.as_str())));
    violations
}

/// The most that each kernel uses on any architecture, and its budget behind a slash.
fn table(measured: &[Measured]) -> String {
    let mut text = format!(
        "{:<30} {:>9} {:>12} {:>5} {:>6}  {}\n",
        "kernel", "registers", "shared bytes", "stack", "spills", "file and options"
    );
    for Measured { variant, usage, .. } in most(measured) {
        let budget = budgets::of(&usage.kernel);
        let registers = of_budget(usage.registers, budget.map(|budget| budget.registers));
        let shared = of_budget(usage.shared_bytes, budget.map(|budget| budget.shared_bytes));
        let Usage { kernel, stack_bytes: stack, spilled_bytes: spills, .. } = usage;
        let _ = writeln!(
            text,
            "{kernel:<30} {registers:>9} {shared:>12} {stack:>5} {spills:>6}  {variant}"
        );
    }
    text
}

fn of_budget(used: u32, budget: Option<u32>) -> String {
    format!("{used}/{}", budget.map_or("?".to_owned(), |budget| budget.to_string()))
}

/// One for each variant and kernel.
fn most(measured: &[Measured]) -> Vec<Measured> {
    let mut most: Vec<Measured> = Vec::new();
    for Measured { variant, usage, .. } in measured {
        let known = most
            .iter_mut()
            .find(|known| known.variant == *variant && known.usage.kernel == usage.kernel);
        match known {
            Some(known) => known.usage = known.usage.most(usage),
            None => most.push(Measured {
                variant: variant.clone(),
                architecture: String::new(),
                usage: usage.clone(),
            }),
        }
    }
    most
}
