//! Places of results: the claim of a site, mounted or copied, or an object store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use record::benchmark_file;
use record::files::{IoError, regular_file};

use super::Expected;
use super::unreadable::Unreadable;
use crate::paths::BENCHMARK_FILE;
use record::limits::CONFIG_BYTES_MAX;
use record::{self, Attempt, PodList, Record};
use verdict::baseline::{Baselines, OpenStorage};

/// A record, and the name of its run.
#[derive(Debug, Clone)]
pub struct Collected {
    pub name: String,
    /// Name of the job: in the record, or else the frozen benchmark beside it, or else the run's.
    pub job: String,
    pub record: Record,
}

/// All records of the added places.
#[derive(Debug, Default)]
pub struct Found {
    /// Records that were read.
    pub runs: Vec<Collected>,
    /// Records that cannot be read.
    pub unreadable: Vec<Unreadable>,
}

impl Found {
    /// Adds the records of a folder with runs, or of a store of records at a path or URL.
    ///
    /// # Errors
    /// When there are no records, or they cannot be listed.
    pub fn add(&mut self, open: OpenStorage, place: &str) -> verdict::Result<()> {
        let path = Path::new(place);
        let is_store = record::text::is_remote(place) || Baselines::open(open, path)?.is_some();
        if is_store { self.add_store(&Baselines::at(open, place)?) } else { self.add_folder(path) }
    }

    fn add_store(&mut self, store: &Baselines) -> verdict::Result<()> {
        let mut each = Vec::new();
        for key in store.keys()? {
            each.extend(store.read_each(&key)?);
        }
        if each.is_empty() {
            return Err(verdict::Error::damaged_store("expected records, found none".to_owned()));
        }
        for (path, record) in each {
            let name = stem(&path);
            match record {
                Ok(record) => self.add_record(name, None, record),
                Err(error) => self.unreadable.push(Unreadable {
                    // Names in a store begin with the start time of the run.
                    unix_ms: name.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(0),
                    text: format!("{}: {error}", path.display()),
                    ..Unreadable::new(name, None)
                }),
            }
        }
        Ok(())
    }

    fn add_folder(&mut self, path: &Path) -> verdict::Result<()> {
        let deeper = runs_of_jobs(path)?;
        let each = match Record::read_each(path) {
            Err(record::Error::NoRecord { .. }) if !deeper.is_empty() => Vec::new(),
            found => found?,
        };
        for (path, record) in each {
            self.add_file(&path, record, None);
        }
        for run in deeper {
            let job = run.parent().map(stem);
            self.add_file(&Record::path(&run), Record::read(&run), job);
        }
        Ok(())
    }

    /// Adds a record under the name of its run's folder. The job of an unreadable record is that of
    /// the benchmark beside it, or else the workflow's job folder.
    fn add_file(
        &mut self,
        path: &Path,
        record: Result<Record, record::Error>,
        folder_of_job: Option<String>,
    ) {
        let is_of_folder = path.file_name().is_some_and(|name| name == "record.json");
        let folder = path.parent().filter(|_| is_of_folder);
        let name = stem(folder.unwrap_or(path));
        let job = folder.and_then(job_of);
        match record {
            Ok(record) => self.add_record(name, job, record),
            Err(error) => self.unreadable.push(Unreadable {
                unix_ms: started_unix_ms(path),
                text: error.to_string(),
                ..Unreadable::new(name.clone(), job.or(folder_of_job).or(Some(name)))
            }),
        }
    }

    fn add_record(&mut self, name: String, job: Option<String>, record: Record) {
        let of_record = record.job.as_ref().map(|job| job.name.clone());
        let job = of_record.or(job).unwrap_or_else(|| name.clone());
        self.runs.push(Collected { name, job, record });
    }

    /// Adds pod times to runs that lack them. Pods that started before the last attempt of an
    /// earlier run of the same job belong to that run.
    pub fn fill_in_pods(&mut self, pods: &PodList) {
        let began = |run: &Collected| run.record.attempts.last().map(|last| last.started_unix_ms);
        self.runs.sort_by_key(began);
        let mut since: BTreeMap<String, i64> = BTreeMap::new();
        for run in &mut self.runs {
            let since = since.entry(run.job.clone()).or_insert(i64::MIN);
            pods.fill_in(&run.job, &mut run.record.attempts, *since);
            *since = began(run).map_or(*since, u64::cast_signed);
        }
    }

    /// Drops the runs of other jobs. An unreadable record in a store may be of any job, so it
    /// stays.
    pub fn keep_jobs(&mut self, jobs: &[Expected]) {
        let is_of_one = |name: &String| jobs.iter().any(|job| job.name == *name);
        self.runs.retain(|run| is_of_one(&run.job));
        self.unreadable.retain(|it| it.job.as_ref().is_none_or(is_of_one));
    }
}

/// Start of the last attempt of a run with an unreadable record, or else the record's mtime.
fn started_unix_ms(record: &Path) -> u64 {
    let attempts = record.parent().and_then(|folder| Attempt::read_all(folder).ok());
    if let Some(attempt) = attempts.iter().flatten().last() {
        return attempt.started_unix_ms;
    }
    let modified = std::fs::metadata(record).and_then(|found| found.modified()).ok();
    let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Run folders that are one level deeper, in a folder of their job, as workflows create them.
fn runs_of_jobs(path: &Path) -> Result<Vec<PathBuf>, IoError> {
    let mut runs = Vec::new();
    if !path.is_dir() || record::is_run(path) {
        return Ok(runs);
    }
    for job in folders(path)?.into_iter().filter(|folder| !record::is_run(folder)) {
        runs.extend(folders(&job)?.into_iter().filter(|folder| record::is_run(folder)));
    }
    Ok(runs)
}

/// Subfolders, sorted by name.
fn folders(path: &Path) -> Result<Vec<PathBuf>, IoError> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(path).map_err(IoError::at(path, "list"))? {
        let path = entry.map_err(IoError::at(path, "list"))?.path();
        // Only root may list this folder, which many file systems have in their root.
        all.extend(Some(path).filter(|path| path.is_dir() && !path.ends_with("lost+found")));
    }
    all.sort();
    Ok(all)
}

/// Job that the frozen benchmark in the folder of a run names.
fn job_of(folder: &Path) -> Option<String> {
    let text = regular_file::read_text(&folder.join(BENCHMARK_FILE), CONFIG_BYTES_MAX);
    benchmark_file::job_name(&text.ok()?)
}

fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(".json").unwrap_or(&name).to_owned()
}

#[cfg(test)]
mod tests {
    use verdict::baseline::open_folder;

    use super::*;
    use record::JobRecord;
    use record::fixtures::finished;

    /// Names of runs and of their jobs at a place, in order.
    fn found(place: &Path) -> Vec<(String, String)> {
        let mut found = Found::default();
        found.add(open_folder, place.to_str().unwrap()).unwrap();
        let mut names: Vec<_> = found.runs.into_iter().map(|run| (run.name, run.job)).collect();
        names.sort();
        names
    }

    fn pair(name: &str, job: &str) -> (String, String) {
        (name.to_owned(), job.to_owned())
    }

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
        let nightly = ["nightly-abcde", "nightly-fghij"].map(|name| pair(name, "nightly"));
        let [first, second] = nightly;
        assert_eq!(found(results.path()), [first, second, pair("plain", "plain")]);
    }

    #[test]
    fn a_record_in_a_store_names_its_job() {
        let folder = tempfile::tempdir().unwrap();
        let store = Baselines::at(open_folder, folder.path().to_str().unwrap()).unwrap();
        let mut record = finished();
        let older = store.add(&record).unwrap();
        record.attempts[0].started_unix_ms += 1;
        record.job = Some(JobRecord { name: "nightly".to_owned(), id: "0".to_owned() });
        let newer = store.add(&record).unwrap();
        let [older, newer] = [older, newer].map(|path| stem(&path));
        assert_eq!(found(folder.path()), [pair(&older, &older), pair(&newer, "nightly")]);
    }
}
