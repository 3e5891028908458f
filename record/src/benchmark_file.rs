//! The frozen benchmark file inside a job: the source that the run was rendered from.

use std::path::Path;

use crate::error::Error;
use crate::files::regular_file::read_named_text;
use crate::job::JobRecord;
use crate::limits::CONFIG_BYTES_MAX;

/// Environment variable that names the file to ranks.
pub const VARIABLE: &str = "YARDSTICK_BENCHMARK";

/// Digits of an id, as in a workload's id.
const ID_DIGITS: usize = 12;

/// A frozen benchmark.
#[derive(Debug)]
pub struct Frozen {
    /// The file as text.
    pub text: String,
    /// The job that was rendered from it; `None` where it names none.
    pub job: Option<JobRecord>,
}

/// Reads the benchmark file that this process was started for, if any.
///
/// # Errors
/// [`Error::Benchmark`] for one that cannot be read.
pub fn of_environment() -> Result<Option<Frozen>, Error> {
    let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    path.map(|path| Frozen::read(Path::new(&path))).transpose()
}

impl Frozen {
    /// Reads the file.
    ///
    /// # Errors
    /// [`Error::Benchmark`] for one that cannot be read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = read_named_text(path, CONFIG_BYTES_MAX)
            .map_err(|error| Error::Benchmark { path: path.to_owned(), error: error.source })?;
        let job = job(&text, path);
        Ok(Self { text, job })
    }
}

/// Returns the job of a benchmark. All other keys are ignored, so other versions are read too.
fn job(text: &str, path: &Path) -> Option<JobRecord> {
    let workload = workload(text)?;
    let name = workload.get("name")?.as_str()?.to_owned();
    // A preset has no file next to the benchmark's.
    let file = path.with_file_name(workload.get("workload")?.as_str()?);
    let workload_text = read_named_text(&file, CONFIG_BYTES_MAX).ok();
    Some(JobRecord { name, id: id(text, workload_text.as_deref()) })
}

/// Returns the name of the job in the text of a frozen benchmark.
pub fn job_name(text: &str) -> Option<String> {
    Some(workload(text)?.get("name")?.as_str()?.to_owned())
}

fn workload(text: &str) -> Option<toml::Table> {
    match text.parse::<toml::Table>().ok()?.remove("workload")? {
        toml::Value::Table(workload) => Some(workload),
        _ => None,
    }
}

/// Digest of everything that defines a job.
pub fn id(frozen: &str, workload_text: Option<&str>) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [Some(frozen), workload_text].into_iter().flatten() {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..ID_DIGITS].to_owned()
}
