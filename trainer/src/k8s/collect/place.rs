//! Where results are: the claim of a site, mounted or copied, or an object store.

use std::path::{Path, PathBuf};

use crate::baseline::{self, Baselines};
use crate::k8s::paths::BENCHMARK_FILE;
use crate::record::{self, Record};

/// A record, and what its run is called.
#[derive(Debug, Clone)]
pub(crate) struct Collected {
    pub(crate) name: String,
    /// Name of its job: in the frozen benchmark beside the record, else that of the run.
    pub(crate) job: String,
    pub(crate) record: Record,
}

impl Collected {
    /// All records of a folder with runs, or of a store of records at a path or URL.
    ///
    /// # Errors
    /// When there is none, or one cannot be read.
    pub(crate) fn read_all(place: &str) -> Result<Vec<Self>, baseline::Error> {
        let path = Path::new(place);
        let is_store = checkpoint::remote::is_remote(place) || Baselines::open(path).is_some();
        if is_store { Self::of_store(&Baselines::at(place)?) } else { Self::of_folder(path) }
    }

    fn of_store(store: &Baselines) -> Result<Vec<Self>, baseline::Error> {
        let mut all = Vec::new();
        for key in store.keys()? {
            let kept = store.records(&key)?.into_iter();
            all.extend(kept.map(|kept| Self::named(stem(&kept.path), None, kept.record)));
        }
        anyhow::ensure!(!all.is_empty(), "expected records, found none");
        Ok(all)
    }

    /// The folder of a run is its name.
    fn of_folder(path: &Path) -> Result<Vec<Self>, baseline::Error> {
        let named = |(path, record): (std::path::PathBuf, Record)| {
            let is_of_folder = path.file_name().is_some_and(|name| name == "record.json");
            let folder = path.parent().filter(|_| is_of_folder);
            Self::named(stem(folder.unwrap_or(&path)), folder.and_then(job_of), record)
        };
        let deeper = runs_of_jobs(path);
        let mut found = match Record::read_all(path) {
            Err(record::Error::NoRecord { .. }) if !deeper.is_empty() => Vec::new(),
            found => found?,
        };
        for run in deeper {
            found.extend(Record::read_all(&run)?);
        }
        Ok(found.into_iter().map(named).collect())
    }

    fn named(name: String, job: Option<String>, record: Record) -> Self {
        Self { job: job.unwrap_or_else(|| name.clone()), name, record }
    }
}

/// Folders of runs that are one deeper, as those of workflows are: in a folder of their job.
fn runs_of_jobs(path: &Path) -> Vec<PathBuf> {
    let is_run = |folder: &PathBuf| folder.join("record.json").is_file();
    if is_run(&path.to_owned()) {
        return Vec::new();
    }
    let jobs = folders(path).into_iter().filter(|folder| !is_run(folder));
    jobs.flat_map(|job| folders(&job)).filter(is_run).collect()
}

/// In the order of names; none where they cannot be listed.
fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    all.sort();
    all
}

/// The job that the frozen benchmark in the folder of a run names: also one of another version.
fn job_of(folder: &Path) -> Option<String> {
    let text = std::fs::read_to_string(folder.join(BENCHMARK_FILE)).ok()?;
    let benchmark: toml::Table = text.parse().ok()?;
    Some(benchmark.get("workload")?.get("name")?.as_str()?.to_owned())
}

fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(".json").unwrap_or(&name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::finished;

    #[test]
    fn runs_of_workflows_are_one_folder_deeper_and_of_the_job_that_their_benchmark_names() {
        let results = tempfile::tempdir().unwrap();
        for run in ["nightly/nightly-abcde", "nightly/nightly-fghij", "plain"] {
            let folder = results.path().join(run);
            std::fs::create_dir_all(&folder).unwrap();
            let record = serde_json::to_vec(&finished()).unwrap();
            std::fs::write(folder.join("record.json"), record).unwrap();
            if run != "plain" {
                let benchmark = "[workload]\nname = \"nightly\"\n";
                std::fs::write(folder.join(BENCHMARK_FILE), benchmark).unwrap();
            }
        }
        let all = Collected::read_all(results.path().to_str().unwrap()).unwrap();
        let mut found: Vec<_> = all.iter().map(|run| (run.name.as_str(), &*run.job)).collect();
        found.sort();
        let nightly = ["nightly-abcde", "nightly-fghij"].map(|name| (name, "nightly"));
        assert_eq!(found, [nightly[0], nightly[1], ("plain", "plain")]);
    }
}
