//! A job: a benchmark whose workload `train` accepts, and the objects that it becomes.

use std::path::Path;

use record::benchmark_file;
use record::text::is_remote;

use super::benchmark::Benchmark;
use super::format::Format;
use super::trainer::{Trainer, Workload};
use super::workload_file::WorkloadFile;
use super::{memory, names, paths, train, trainjob};
use crate::error::{Error, Result};

/// A benchmark with its workload.
#[derive(Debug)]
pub struct Job {
    pub(super) benchmark: Benchmark,
    /// The benchmark as text, without anything that is not part of it, such as comments.
    pub(super) frozen: String,
    /// The workload file, unless the workload is a preset.
    pub(super) file: Option<WorkloadFile>,
    /// Workload that ranks will train.
    workload: Box<dyn Workload>,
    id: String,
    format: Format,
}

impl Job {
    /// Reads the benchmark's workload, relative to the folder of the benchmark file.
    ///
    /// # Errors
    /// Exit code 2 for a workload that `train` would refuse on the job's nodes.
    pub fn new(
        benchmark: Benchmark,
        folder: &Path,
        format: Format,
        trainer: &impl Trainer,
    ) -> Result<Self> {
        let name = benchmark.name().to_owned();
        Self::checked(benchmark, folder, format, trainer).map_err(|failure| failure.context(name))
    }

    /// Flags of the `compare` that judges its runs.
    ///
    /// # Errors
    /// Exit code 2 for flags of a job whose runs are not compared.
    pub fn compare_flags(&self) -> Result<&[String]> {
        let reporting = &self.benchmark.workflow.reporting;
        if reporting.records.is_none() && !reporting.compare.is_empty() {
            return Err(Error::Refused(format!(
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
        trainer: &impl Trainer,
    ) -> Result<Self> {
        let file = WorkloadFile::of(&benchmark, folder, trainer)?;
        let named = file.as_ref().map_or(&benchmark.workload.workload, |file| &file.path);
        let arguments = train::arguments(&benchmark, named, &train::out(&benchmark, format));
        let workload = trainer.load(&arguments).map_err(Error::Refused)?;
        let benchmark = match &file {
            Some(file) => benchmark.with_workload(&file.name),
            None => benchmark,
        };
        let frozen = toml::to_string(&benchmark).expect("plain data in memory");
        let id = benchmark_file::id(&frozen, file.as_ref().map(|file| file.text.as_str()));
        let job = Self { benchmark, frozen, file, workload, id, format };
        job.check()?;
        Ok(job)
    }

    /// Checks what `train` would detect only on the nodes.
    fn check(&self) -> Result<()> {
        self.check_name()?;
        if self.format == Format::Trainjob {
            trainjob::check(&self.benchmark)?;
        }
        self.workload.check(self.benchmark.world()).map_err(Error::Refused)?;
        if self.workload.is_on_cuda() != self.benchmark.is_on_gpus() {
            return Err(Error::Refused(
                "run.device = \"cuda\" and workload.gpus_per_node: expected both or neither\n  \
                 hint: gpus_per_node sets the device"
                    .to_owned(),
            ));
        }
        memory::check(&self.benchmark, &*self.workload)?;
        let is_of_this_machine = |path: &&str| !is_remote(path) && !path.starts_with('/');
        match self.workload.inputs().into_iter().find(is_of_this_machine) {
            Some(path) => Err(Error::Refused(format!(
                "{path}: expected an absolute path inside of the pods, as /shared/{path}, or \
                 s3://, gs:// or az:// BUCKET/KEY: files of this machine are not there"
            ))),
            None => Ok(()),
        }
    }

    /// Checks the names of pods and services, which the controller derives from the job's name.
    fn check_name(&self) -> Result<()> {
        let longest = self.format.longest_name(self.name(), self.benchmark.workers());
        if names::is_service(self.name()) && names::is_service(&longest) {
            return Ok(());
        }
        let expected = format!(
            "{}, so short that {longest} has at most {} characters",
            names::SERVICE,
            names::LABEL_MAX
        );
        Err(Error::invalid("workload.name", self.name(), expected))
    }

    /// Format of the job, which decides the controller that runs it.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Name of the job.
    pub fn name(&self) -> &str {
        self.benchmark.name()
    }

    /// Digest of the benchmark and the workload file.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Id of the workload, if it does not depend on the content of data files.
    pub fn workload_id(&self) -> Option<String> {
        self.workload.id()
    }

    /// Text that names of the workload's baselines contain, for `baseline show --only`.
    pub(super) fn baseline_name(&self) -> String {
        self.workload_id().unwrap_or_else(|| format!("{}-", self.workload.name()))
    }

    /// Name of the object with the job's files. The object is immutable and has one name per id, so
    /// that an edited benchmark gets a new object, and no pod an older one. At most 76 of the 253
    /// characters that a name may have.
    pub(super) fn config_map_name(&self) -> String {
        format!("{}-{}", self.name(), self.id)
    }

    /// Workload argument of `train` inside the job.
    pub fn workload_inside(&self) -> String {
        let file = self.file.as_ref().map(|file| format!("{}/{}", paths::JOB, file.name));
        file.unwrap_or_else(|| self.benchmark.workload.workload.clone())
    }

    /// Arguments of `train` for this preset or file.
    pub(super) fn train_arguments(&self, workload: &str) -> Vec<String> {
        train::arguments(&self.benchmark, workload, &self.out())
    }

    /// Folder of the run.
    pub(super) fn out(&self) -> String {
        train::out(&self.benchmark, self.format)
    }
}
