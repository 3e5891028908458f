//! `yardstick doctor`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::{LogArguments, json, say, write_line};
use record::text::duration;
use record::text::printable;
use trainer::config::Config;
use trainer::doctor::{self, DoctorOptions, Required};
use trainer::failure::{Failure, Outcome};
use trainer::time_limit::within;

/// Timeout of writing the report file.
const REPORT_WITHIN: Duration = Duration::from_secs(5);
use trainer::run::Exit;

/// Check hosts, GPUs, networks and storage: alone, under `mpirun`, or by `launch -- doctor`.
///
/// Every rank checks its host and its GPU. Then all ranks compare versions and clocks, and measure
/// links; with --device cuda they also connect NCCL and read the transports that it chose. One
/// table has a line for each result that is the same everywhere, and names ranks and hosts that
/// differ. Exits with 3 if a check failed; warnings do not count. docs/doctor.md lists the checks.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// Preset or TOML file whose needs of memory and checkpoint space are checked.
    #[arg(long, value_name = "NAME|FILE")]
    workload: Option<String>,
    /// Set a value of the configuration, as in `--set checkpoint.nvme.path=/nvme`; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
    /// Device that ranks would compute on [default: cpu].
    #[arg(long, value_parser = ["cpu", "cuda"])]
    device: Option<String>,
    /// Folder of the run, which must have space for its checkpoints.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Checks that must pass: their warnings and skips count as failures.
    #[arg(long, value_name = "CHECK", value_delimiter = ',')]
    require: Vec<String>,
    /// Measure links even between more than 16 nodes.
    #[arg(long)]
    links: bool,
    /// Timeout of every operation between ranks, as in 90s or 5m.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration::parse)]
    deadline: Duration,
    /// Print JSON with the schema docs/doctor.schema.json.
    #[arg(long)]
    json: bool,
    /// Also write the output to this file: the log of a pod is deleted with the pod.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    pub(super) log: LogArguments,
}

impl Doctor {
    pub(super) fn run(self) -> Outcome<Exit> {
        let mut overrides =
            vec![format!("collectives.deadline={}", duration::format(self.deadline))];
        overrides.extend(self.device.map(|device| format!("run.device={device}")));
        overrides.extend(self.overrides);
        let workload = self.workload.as_deref().unwrap_or("smoke");
        let options = DoctorOptions {
            config: Config::load(workload, &overrides)?,
            has_workload: self.workload.is_some(),
            out: self.out,
            required: Required::of(&self.require)
                .map_err(|problem| Failure::usage(format!("--require {problem}")))?,
            links: self.links,
        };
        doctor::run(&options, |report| {
            let text =
                if self.json { json(report)? } else { printable(&report.to_string()).into_owned() };
            write_line(&text)?;
            if let Some(file) = self.report {
                write(file, text);
            }
            Ok(())
        })
    }
}

/// Writes the file and creates its folders. If that fails or storage hangs, stderr says so: the
/// exit code is that of the checks.
fn write(file: PathBuf, text: String) {
    let shown = file.display().to_string();
    let write = move || {
        let folder = file.parent().unwrap_or(Path::new(""));
        std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&file, text))
    };
    match within(REPORT_WITHIN, write) {
        Ok(Some(Ok(()))) => {}
        Ok(Some(Err(error))) => say("doctor", &format!("--report {shown}: {error}")),
        Err(error) => say("doctor", &format!("--report {shown}: {error}")),
        Ok(None) => say("doctor", &format!("--report {shown}: is storage hung?")),
    }
}
