//! A job: a benchmark whose workload `train` accepts, and the objects that it becomes.

use std::path::Path;

use checkpoint::remote::is_remote;
use k8s_openapi::api::core::v1::ConfigMap;
use serde::Serialize;

use super::benchmark::Benchmark;
use super::format::Format;
use super::{argo, metadata, mpijob, names, network, paths, trainjob};
use crate::config::{Config, duration};
use crate::failure::{ExitCode, Failure, Outcome};

/// Digits of an id, as of a workload's.
const ID_DIGITS: usize = 12;

/// The file of a workload that is not a preset.
#[derive(Debug)]
struct WorkloadFile {
    /// On this machine.
    path: String,
    /// Inside of the job.
    name: String,
    text: String,
}

impl WorkloadFile {
    /// That of a benchmark, `None` for a preset.
    fn of(benchmark: &Benchmark, folder: &Path) -> Outcome<Option<Self>> {
        let named = &benchmark.workload.workload;
        if models::presets::text(named).is_some() {
            return Ok(None);
        }
        let path = folder.join(named);
        let name = path.file_name().map_or(named.into(), |name| name.to_string_lossy());
        if !names::is_file_of_config_map(&name) || name == paths::BENCHMARK_FILE {
            let expected = "a file of letters, digits, dashes and dots, not benchmark.toml";
            return Err(models::Error::invalid("workload.workload", named, expected).into());
        }
        let name = name.into_owned();
        let path = path.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).map_err(|error| {
            Failure::usage(format!(
                "workload.workload = {named}: neither a preset nor a readable file ({error})"
            ))
        })?;
        Ok(Some(Self { path, name, text }))
    }
}

/// A benchmark with its workload.
#[derive(Debug)]
pub(crate) struct Job {
    pub(super) benchmark: Benchmark,
    /// The benchmark as text, without what is not part of it, as comments.
    frozen: String,
    /// The workload file, where it is not a preset.
    file: Option<WorkloadFile>,
    /// What ranks will train.
    config: Config,
    id: String,
    format: Format,
}

impl Job {
    /// Reads the benchmark's workload, relative to the folder of the benchmark file. `load` makes a
    /// configuration of the arguments of `train`.
    ///
    /// # Errors
    /// Exit code 2 for a workload that `train` would refuse on the job's nodes.
    pub(crate) fn new(
        benchmark: Benchmark,
        folder: &Path,
        format: Format,
        load: impl Fn(&[String]) -> Outcome<Config>,
    ) -> Outcome<Self> {
        let name = benchmark.name().to_owned();
        Self::checked(benchmark, folder, format, load).map_err(|failure| failure.context(name))
    }

    fn checked(
        benchmark: Benchmark,
        folder: &Path,
        format: Format,
        load: impl Fn(&[String]) -> Outcome<Config>,
    ) -> Outcome<Self> {
        let file = WorkloadFile::of(&benchmark, folder)?;
        let named = file.as_ref().map_or(&benchmark.workload.workload, |file| &file.path);
        let config = load(&train_arguments(&benchmark, named, &out(&benchmark, format)))?;
        let benchmark = match &file {
            Some(file) => benchmark.with_workload(&file.name),
            None => benchmark,
        };
        let frozen =
            toml::to_string(&benchmark).map_err(|error| Failure::new(ExitCode::Internal, error))?;
        let id = id(&frozen, file.as_ref().map(|file| file.text.as_str()));
        let job = Self { benchmark, frozen, file, config, id, format };
        job.check()?;
        Ok(job)
    }

    /// What `train` finds out only on the nodes.
    fn check(&self) -> Outcome<()> {
        self.check_name()?;
        self.config.workload.batch.accumulation(self.benchmark.world())?;
        if self.config.is_on_cuda() != self.benchmark.is_on_gpus() {
            return Err(Failure::usage(
                "run.device = \"cuda\" and workload.gpus_per_node: expected both or neither\n  \
                 hint: gpus_per_node sets the device",
            ));
        }
        let data = &self.config.workload.data;
        let files = data.files.iter().chain(&data.evaluation_files);
        let folder = self.config.settings.run.init_from.as_ref();
        match files.chain(folder).find(|path| !is_remote(path) && !path.starts_with('/')) {
            Some(path) => Err(Failure::usage(format!(
                "{path}: expected an absolute path inside of the pods, as /shared/{path}, or \
                 s3://, gs:// or az:// BUCKET/KEY: files of this machine are not there"
            ))),
            None => Ok(()),
        }
    }

    /// The controller makes the names of pods and services of the job's.
    fn check_name(&self) -> Outcome<()> {
        let longest = self.format.longest_name(self.name(), self.benchmark.workers());
        if names::is_service(self.name()) && names::is_service(&longest) {
            return Ok(());
        }
        let expected = format!(
            "letters, digits and dashes, a letter first, so short that {longest} has at most {} \
             characters",
            names::LABEL_MAX
        );
        Err(models::Error::invalid("workload.name", self.name(), expected).into())
    }

    /// What runs it.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Name of the job.
    pub(crate) fn name(&self) -> &str {
        self.benchmark.name()
    }

    /// A digest of the benchmark and the workload file.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The workload's id, where that does not depend on the content of data files.
    pub(super) fn workload_id(&self) -> Option<String> {
        let data = &self.config.workload.data;
        data.files.is_empty().then(|| self.config.workload.id(None))
    }

    /// Name of the object with the job's files.
    pub(super) fn config_map_name(&self) -> String {
        format!("{}-benchmark", self.name())
    }

    /// What `train` gets as its workload inside of the job.
    pub(super) fn workload_inside(&self) -> String {
        let file = self.file.as_ref().map(|file| format!("{}/{}", paths::JOB, file.name));
        file.unwrap_or_else(|| self.benchmark.workload.workload.clone())
    }

    /// The arguments of `train` for this preset or file.
    pub(super) fn train_arguments(&self, workload: &str) -> Vec<String> {
        train_arguments(&self.benchmark, workload, &self.out())
    }

    /// Folder of the run.
    pub(super) fn out(&self) -> String {
        out(&self.benchmark, self.format)
    }

    /// The objects of the job as YAML documents, in the order in which they are needed.
    ///
    /// # Errors
    /// Exit code 1, should one of them not be serializable.
    pub(crate) fn to_yaml(&self) -> Outcome<String> {
        let mut documents = vec![document(&self.config_map())?];
        // It does not bind pods in the network of their node, and would only seem to.
        if !self.benchmark.platform.host_network {
            documents.push(document(&network::policy(self))?);
        }
        match self.format {
            Format::Mpijob => documents.push(document(&mpijob::of(self))?),
            Format::Trainjob => {
                documents.push(document(&trainjob::runtime(self))?);
                documents.push(document(&trainjob::of(self))?);
            }
            Format::Argo => documents.push(document(&argo::of(self)?)?),
        }
        Ok(documents.concat())
    }

    /// The frozen benchmark, and the workload file beside it.
    fn config_map(&self) -> ConfigMap {
        let mut data = metadata::map([(paths::BENCHMARK_FILE, self.frozen.as_str())]);
        data.extend(self.file.iter().map(|file| (file.name.clone(), file.text.clone())));
        ConfigMap {
            metadata: metadata::of_object(self, &self.config_map_name()),
            data: Some(data),
            immutable: Some(true),
            ..ConfigMap::default()
        }
    }
}

/// A document of a YAML stream.
pub(super) fn document(object: &impl Serialize) -> Outcome<String> {
    let yaml = serde_saphyr::to_string(object)
        .map_err(|error| Failure::new(ExitCode::Internal, error).context("YAML"))?;
    Ok(format!("---\n{}\n", yaml.trim_end()))
}

/// A digest of everything that a job is made of.
fn id(frozen: &str, workload_text: Option<&str>) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [Some(frozen), workload_text].into_iter().flatten() {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..ID_DIGITS].to_owned()
}

/// Folder of the run. Workflows of one template are runs of their own; a job of the same name goes
/// on with the run.
fn out(benchmark: &Benchmark, format: Format) -> String {
    let folder = format!("{}/{}", paths::RESULTS, benchmark.name());
    if format == Format::Argo { format!("{folder}/{}", argo::WORKFLOW) } else { folder }
}

/// The arguments of `train` for this preset or file, and this folder of the run.
fn train_arguments(benchmark: &Benchmark, named: &str, out: &str) -> Vec<String> {
    let Benchmark { workflow, workload, .. } = benchmark;
    let reporting = &workflow.reporting;
    let mut all = Vec::new();
    let mut flag = |name: &str, value: Option<String>| {
        all.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    };
    flag("--workload", Some(named.to_owned()));
    flag("--out", Some(out.to_owned()));
    flag("--device", benchmark.is_on_gpus().then(|| "cuda".to_owned()));
    for item in &workload.set {
        flag("--set", Some(item.clone()));
    }
    flag("--steps", workload.steps.map(|steps| steps.to_string()));
    flag("--checkpoint-every", workload.checkpoint_every.map(|every| every.to_string()));
    flag("--eval-every", workload.eval_every.map(|steps| steps.to_string()));
    flag("--target-loss", workload.target_loss.map(|loss| loss.to_string()));
    let object = workflow.storage.object.as_ref();
    flag("--set", object.map(|url| format!("checkpoint.object.path={url}")));
    if reporting.metrics_port > 0 {
        let linger = duration::format(reporting.metrics_linger);
        flag("--prometheus", Some(format!("0.0.0.0:{}", reporting.metrics_port)));
        flag("--set", Some(format!("telemetry.prometheus_linger={linger}")));
    }
    flag("--otlp", reporting.otlp.clone());
    flag("--records", reporting.records.clone());
    all
}
