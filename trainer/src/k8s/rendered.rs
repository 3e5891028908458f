//! A job: a benchmark whose workload `train` accepts, and the objects that it becomes.

use std::path::Path;

use k8s_openapi::api::core::v1::ConfigMap;
use record::text::is_remote;
use serde::Serialize;

use super::benchmark::Benchmark;
use super::format::Format;
use super::workload_file::WorkloadFile;
use super::{argo, frozen, memory, metadata, mpijob, names, network, paths, train, trainjob};
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use record::ExitCode;

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

    /// Flags of the `compare` that judges its runs.
    ///
    /// # Errors
    /// Exit code 2 for flags of a job whose runs are not compared with anything.
    pub(crate) fn compare_flags(&self) -> Outcome<&[String]> {
        let reporting = &self.benchmark.workflow.reporting;
        if reporting.records.is_none() && !reporting.compare.is_empty() {
            return Err(Failure::usage(format!(
                "workflow.reporting.compare = {:?}: expected workflow.reporting.records, which a \
                 run is compared with",
                reporting.compare
            )));
        }
        Ok(&reporting.compare)
    }

    fn checked(
        benchmark: Benchmark,
        folder: &Path,
        format: Format,
        load: impl Fn(&[String]) -> Outcome<Config>,
    ) -> Outcome<Self> {
        let file = WorkloadFile::of(&benchmark, folder)?;
        let named = file.as_ref().map_or(&benchmark.workload.workload, |file| &file.path);
        let config = load(&train::arguments(&benchmark, named, &train::out(&benchmark, format)))?;
        config.refuse_secrets()?;
        let benchmark = match &file {
            Some(file) => benchmark.with_workload(&file.name),
            None => benchmark,
        };
        let frozen =
            toml::to_string(&benchmark).map_err(|error| Failure::new(ExitCode::Internal, error))?;
        let id = frozen::id(&frozen, file.as_ref().map(|file| file.text.as_str()));
        let job = Self { benchmark, frozen, file, config, id, format };
        job.check()?;
        Ok(job)
    }

    /// What `train` finds out only on the nodes.
    fn check(&self) -> Outcome<()> {
        self.check_name()?;
        if self.format == Format::Trainjob {
            trainjob::check(&self.benchmark)?;
        }
        self.config.workload.batch.accumulation(self.benchmark.world())?;
        if self.config.is_on_cuda() != self.benchmark.is_on_gpus() {
            return Err(Failure::usage(
                "run.device = \"cuda\" and workload.gpus_per_node: expected both or neither\n  \
                 hint: gpus_per_node sets the device",
            ));
        }
        memory::check(&self.benchmark, &self.config)?;
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
            "{}, so short that {longest} has at most {} characters",
            names::SERVICE,
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

    /// What names of baselines of its workload contain, as `baseline show --only` takes it.
    pub(super) fn baseline_name(&self) -> String {
        self.workload_id().unwrap_or_else(|| format!("{}-", self.config.name))
    }

    /// Name of the object with the job's files, which cannot be changed: one for each id, so that
    /// an edited benchmark gets one of its own, and no pod an older one. At most 76 of the 253
    /// characters that it may have.
    pub(super) fn config_map_name(&self) -> String {
        format!("{}-{}", self.name(), self.id)
    }

    /// What `train` gets as its workload inside of the job.
    pub(super) fn workload_inside(&self) -> String {
        let file = self.file.as_ref().map(|file| format!("{}/{}", paths::JOB, file.name));
        file.unwrap_or_else(|| self.benchmark.workload.workload.clone())
    }

    /// The arguments of `train` for this preset or file.
    pub(super) fn train_arguments(&self, workload: &str) -> Vec<String> {
        train::arguments(&self.benchmark, workload, &self.out())
    }

    /// Folder of the run.
    pub(super) fn out(&self) -> String {
        train::out(&self.benchmark, self.format)
    }

    /// The objects of the job as YAML documents, in the order in which they are needed.
    ///
    /// # Errors
    /// Exit code 1, should one of them not be serializable.
    pub(crate) fn to_yaml(&self) -> Outcome<String> {
        let mut documents = vec![document(&self.config_map())?, document(&network::policy(self))?];
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
