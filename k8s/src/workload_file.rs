//! The workload file of a job.

use std::path::Path;

use record::files::regular_file::read_named_text;

use super::benchmark::Benchmark;
use super::trainer::Trainer;
use super::{names, paths};
use crate::error::{Error, Result};
use record::limits::CONFIG_BYTES_MAX;

/// File of a workload that is not a preset.
#[derive(Debug)]
pub(super) struct WorkloadFile {
    /// Path on this machine.
    pub(super) path: String,
    /// Name inside the job.
    pub(super) name: String,
    pub(super) text: String,
}

impl WorkloadFile {
    /// Reads the workload file, relative to the folder of the benchmark file; `None` for a preset.
    ///
    /// # Errors
    /// Exit code 2 for a file that cannot be read, or that a ConfigMap cannot hold.
    pub(super) fn of(
        benchmark: &Benchmark,
        folder: &Path,
        trainer: &impl Trainer,
    ) -> Result<Option<Self>> {
        let named = &benchmark.workload.workload;
        if trainer.is_preset(named) {
            return Ok(None);
        }
        let path = folder.join(named);
        let name = path.file_name().map_or(named.into(), |name| name.to_string_lossy());
        if !names::is_file_of_config_map(&name) || name == paths::BENCHMARK_FILE {
            let expected = "a file of letters, digits, dashes and dots, not benchmark.toml";
            return Err(Error::invalid("workload.workload", named, expected));
        }
        let name = name.into_owned();
        let path = path.to_string_lossy().into_owned();
        let text = read_named_text(Path::new(&path), CONFIG_BYTES_MAX).map_err(|error| {
            let error = error.source;
            Error::Refused(format!(
                "workload.workload = {named}: neither a preset nor a readable file ({error})"
            ))
        })?;
        Ok(Some(Self { path, name, text }))
    }
}
