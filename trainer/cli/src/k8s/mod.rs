//! `yardstick k8s`: jobs for Kubernetes.

mod own_trainer;
#[cfg(test)]
mod rendering_tests;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::compare::check_flags;
use super::storage;
use super::{note, print, print_json};
use ::k8s::{self, Collection, Expected, Format, Found, Job};
use ::trainer::config::Settings;
use ::trainer::failure::{Failure, Outcome};
use own_trainer::OwnTrainer;
use record::ExitCode;
use record::PodList;
use serde_json::json;
use verdict::report::{ReportData, html};

/// Render jobs for Kubernetes, and collect their results. Needs no access to a cluster.
#[derive(Debug, Args)]
pub(super) struct K8s {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Render(Render),
    Collect(Collect),
}

/// Render a benchmark file as the objects of jobs, for `kubectl apply -f`.
///
/// The same file gives the same bytes. Errors that the cluster, the operator or `train` would
/// report are reported here.
#[derive(Debug, Args)]
struct Render {
    /// Benchmark file: TOML with the tables workflow, platform and workload, and matrix for several
    /// jobs.
    #[arg(value_name = "FILE")]
    benchmark: PathBuf,
    /// Runner of the job: mpi-operator, Kubeflow's trainer, or Argo Workflows with mpi-operator.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "mpijob")]
    format: Format,
    /// Write to this file, or one file per job to this folder [default: stdout].
    #[arg(long, value_name = "FILE|DIR")]
    out: Option<PathBuf>,
}

/// Collect the records of jobs in one table, with the scaling efficiency over their nodes.
///
/// Efficiency is the rate per node relative to that on the fewest nodes, with the same workload and
/// settings.
#[derive(Debug, Args)]
struct Collect {
    /// Folders of runs, such as a mounted or copied volume, or stores of records that `train
    /// --records` fills, as in s3://BUCKET/PREFIX.
    #[arg(value_name = "PLACE", required = true)]
    places: Vec<String>,
    /// Collect only the jobs of this benchmark file, and exit with 3 unless the newest record of
    /// each is complete.
    #[arg(long, value_name = "FILE")]
    benchmark: Option<PathBuf>,
    /// Add the startup times of pods to records without them, from the output of `kubectl get pods
    /// -o json` while the pods existed.
    #[arg(long, value_name = "FILE")]
    pods: Option<PathBuf>,
    /// Write a self-contained HTML page with a chart of all runs.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl K8s {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        match self.command {
            Command::Render(render) => render.run(),
            Command::Collect(collect) => collect.run(),
        }
    }
}

impl Render {
    fn run(self) -> Outcome<ExitCode> {
        let jobs = self.jobs().map_err(|failure| {
            let named = self.benchmark.display().to_string();
            if failure.to_string().starts_with(&named) { failure } else { failure.context(named) }
        })?;
        match self.out.as_deref() {
            Some(folder) if folder.is_dir() => {
                for job in &jobs {
                    write(&folder.join(format!("{}.yaml", job.name())), &rendered(job.to_yaml())?)?;
                }
                Ok(ExitCode::Done)
            }
            Some(file) => write(file, &together(&jobs)?),
            None => print(together(&jobs)?.trim_end()),
        }
    }

    fn jobs(&self) -> Outcome<Vec<Job>> {
        let folder = self.benchmark.parent().unwrap_or(Path::new("."));
        let benchmarks = rendered(k8s::read(&self.benchmark, &OwnTrainer))?.into_iter();
        let job = |benchmark| {
            let job = rendered(Job::new(benchmark, folder, self.format, &OwnTrainer))?;
            check_flags(rendered(job.compare_flags())?)?;
            Ok(job)
        };
        benchmarks.map(job).collect()
    }
}

impl Collect {
    fn run(self) -> Outcome<ExitCode> {
        let expected: Vec<Expected> = match &self.benchmark {
            Some(file) => {
                rendered(k8s::read(file, &OwnTrainer))?.iter().map(Expected::of).collect()
            }
            None => Vec::new(),
        };
        let found = self.found(&expected)?;
        let collection = Collection::of(&found, &expected, &json!(Settings::default()));
        if let Some(file) = &self.html {
            let runs = found.runs.into_iter();
            let reports: Vec<_> =
                runs.map(|run| ReportData::new(run.record).with_folder(&run.name)).collect();
            write(file, &html(&reports))?;
        }
        if self.json { print_json(&collection) } else { print(&collection) }?;
        // Without a benchmark no job is judged, but the table must contain every record.
        let is_whole = match self.benchmark {
            Some(_) => collection.is_whole(),
            None => collection.unreadable.is_empty(),
        };
        Ok(if is_whole { ExitCode::Done } else { ExitCode::Environment })
    }

    /// Returns the records of these jobs, or all records without a benchmark.
    fn found(&self, expected: &[Expected]) -> Outcome<Found> {
        let mut found = Found::default();
        for place in &self.places {
            found
                .add(storage::open, place)
                .map_err(|error| Failure::new(ExitCode::Usage, error).context(place.clone()))?;
        }
        if self.benchmark.is_some() {
            found.keep_jobs(expected);
        }
        if let Some(file) = &self.pods {
            let pods = PodList::read(file).map_err(Failure::usage)?;
            found.fill_in_pods(&pods);
        }
        Ok(found)
    }
}

/// Converts the error of a job that cannot be rendered to a failure with its exit code.
fn rendered<T>(result: k8s::Result<T>) -> Outcome<T> {
    result.map_err(|error| Failure::new(error.exit_code(), error))
}

/// Renders the objects of all jobs as one stream of documents.
fn together(jobs: &[Job]) -> Outcome<String> {
    jobs.iter().map(|job| rendered(job.to_yaml())).collect()
}

fn write(file: &Path, text: &str) -> Outcome<ExitCode> {
    std::fs::write(file, text)
        .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    note(format!("wrote {}", file.display()));
    Ok(ExitCode::Done)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;

    use super::super::Arguments;

    /// Collects each list of arguments in a value.
    fn arguments(value: &Value, found: &mut Vec<Vec<String>>) {
        match value {
            Value::Array(values) => values.iter().for_each(|value| arguments(value, found)),
            Value::Object(map) => {
                if let Some(Value::Array(words)) = map.get("args") {
                    found.push(words.iter().map(|word| word.as_str().unwrap().into()).collect());
                }
                map.values().for_each(|value| arguments(value, found));
            }
            _ => {}
        }
    }

    /// Returns the objects of a rendered job, and those that its workflow creates.
    fn objects(yaml: &str) -> Vec<Value> {
        let mut all: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
        let templates = all.last().unwrap().pointer("/spec/templates");
        let templates = templates.and_then(Value::as_array).into_iter().flatten();
        let manifests =
            templates.filter_map(|template| template.pointer("/resource/manifest")?.as_str());
        let created: Vec<Value> =
            manifests.map(|text| serde_saphyr::from_str(text).unwrap()).collect();
        all.extend(created);
        all
    }

    #[test]
    fn what_containers_of_the_committed_jobs_run_is_a_command_of_this_program() {
        // Launcher and workers; a workflow has two jobs and three tasks of its own.
        for (yaml, containers) in [
            (include_str!("../../../../k8s/jobs/gpt2-124m-efa.yaml"), 2),
            (include_str!("../../../../k8s/jobs/llama3-8b-rdma.yaml"), 2),
            (include_str!("../../../../k8s/jobs/smoke-cpu.argo.yaml"), 2 * 2 + 3),
            (include_str!("../../../../k8s/jobs/smoke-cpu.trainjob.yaml"), 2),
            (include_str!("../../../../k8s/jobs/smoke-cpu.yaml"), 2),
        ] {
            let mut found = Vec::new();
            objects(yaml).iter().for_each(|object| arguments(object, &mut found));
            assert_eq!(found.len(), containers);
            for words in found {
                let line = ["yardstick".to_owned()].into_iter().chain(words.clone());
                let parsed = Arguments::try_parse_from(line);
                assert!(parsed.is_ok(), "{words:?}: {}", parsed.unwrap_err());
                let launched = words.iter().skip_while(|word| *word != "--").skip(1).cloned();
                let launched: Vec<String> = launched.collect();
                if !launched.is_empty() {
                    let line = ["yardstick".to_owned()].into_iter().chain(launched);
                    assert!(Arguments::try_parse_from(line).is_ok(), "{words:?}");
                }
            }
        }
    }
}
