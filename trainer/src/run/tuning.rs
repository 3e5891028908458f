//! `run.tune_matmul`: algorithms of matrix products that were chosen by measurement, the same on
//! all ranks.
//!
//! Rank 0 takes them from the folder of the run, so that a resumed run computes the same bits; or
//! from the machine's cache; or it measures them. The other ranks use those of rank 0, if all have
//! the same kind of device and the same library.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use blake3::Hasher;
use device::cuda::{ComputeCapability, Cuda, Libraries, sealed_file};
use launch::bootstrap::World;
use models::tuning::{ProductTuner, TunedProduct};
use record::files::cache_folder::cache_folder;
use record::files::{self, regular_file};
use record::limits::NOTE_BYTES_MAX;
use record::{Anomaly, ExitCode, TunedProducts, TuningSource};
use serde::{Deserialize, Serialize};
use telemetry::Events;
use telemetry::fact::Fact;

use super::options::RunOptions;
use super::rendezvous::{broadcast_from_rank_0, ranks_with_storage_timeout};
use crate::failure::{Failure, Outcome};
use crate::step::Trainer;

/// First bytes of the files.
const MAGIC: &sealed_file::Magic = b"yardstick tuned1";

/// Name of the file in the folder of a run.
const FILE_OF_RUN: &str = "tuned_products";

/// Tuning of a run's products.
pub(super) struct Tuning<'run> {
    pub(super) options: &'run RunOptions,
    pub(super) world: &'run World,
    pub(super) device: &'run Cuda,
    /// Folder of the run.
    pub(super) root: &'run Path,
    /// Number of the attempt, from 1.
    pub(super) attempt: u32,
    pub(super) events: &'run Events,
}

/// Device and library that an algorithm is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Target {
    device: String,
    compute_capability: ComputeCapability,
    /// Parts of one device have fewer.
    multiprocessors: u32,
    cublaslt: Option<String>,
}

/// Content of a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Tuned {
    target: Target,
    products: Vec<TunedProduct>,
}

/// Algorithms of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Choice {
    source: TuningSource,
    products: Vec<TunedProduct>,
}

impl Target {
    fn of(device: &Cuda) -> Self {
        let properties = device.properties();
        Self {
            device: properties.name.clone(),
            compute_capability: properties.compute_capability,
            multiprocessors: properties.multiprocessors,
            cublaslt: Libraries::of_process().versions().cublaslt,
        }
    }

    /// Returns its file in the cache for these products; `None` without a folder for caches.
    fn cached(&self, products: &[String]) -> Option<PathBuf> {
        let mut hasher = Hasher::new();
        hasher.update(format!("{self:?} {products:?}").as_bytes());
        let digest = hasher.finalize();
        Some(cache_folder("matmul")?.join(format!("{digest}.tuned")))
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { device, compute_capability, multiprocessors, cublaslt } = self;
        let cublaslt = cublaslt.as_deref().unwrap_or("of an unknown version");
        write!(
            formatter,
            "{device} ({compute_capability}, {multiprocessors} multiprocessors) with cuBLASLt \
             {cublaslt}"
        )
    }
}

impl Tuning<'_> {
    /// Lets the products of a new trainer use tuned algorithms. Collective.
    pub(super) fn apply(&self, trainer: &mut Trainer<'_>) -> Outcome<()> {
        trainer.synchronize_weights()?;
        let target = Target::of(self.device);
        let ranks = ranks_with_storage_timeout(self.options, self.world);
        let targets = ranks.gather(&target)?;
        if let Some(rank) = targets.iter().position(|other| *other != targets[0]) {
            let text = format!("it has {}, and rank 0 {}", targets[rank], targets[0]);
            self.warn_untuned(Some(rank), &text);
            return Ok(());
        }
        let own = match self.is_rank_0() {
            true => Some(self.chosen(&target, trainer)?),
            false => None,
        };
        let Some(choice) = broadcast_from_rank_0(self.options, self.world, &own)? else {
            unreachable!("rank 0 has chosen");
        };
        let accepted = trainer.tuner().is_some_and(|tuner| tuner.accepts(&choice.products));
        if let Some(rank) = ranks.gather(&accepted)?.iter().position(|accepted| !accepted) {
            self.warn_untuned(Some(rank), "its cuBLASLt refuses the algorithms of rank 0");
            return Ok(());
        }
        if let Some(tuner) = trainer.tuner() {
            tuner.adopt(&choice.products);
        }
        if self.is_rank_0() {
            self.keep(target, trainer, &choice)?;
            let tuned = tuned_products(&choice);
            self.events.note(sentence(&tuned));
            self.events.note_for_record(Fact::Tuned(tuned));
        }
        Ok(())
    }

    fn is_rank_0(&self) -> bool {
        self.world.placement.rank == 0
    }

    /// Returns the algorithms of the attempt before or of an earlier run, or measures them.
    fn chosen(&self, target: &Target, trainer: &mut Trainer<'_>) -> Outcome<Choice> {
        let Some(tuner) = trainer.tuner() else { unreachable!("a CUDA device has a tuner") };
        match usable(&self.root.join(FILE_OF_RUN), target, tuner) {
            Ok(products) => return Ok(Choice { source: TuningSource::Folder, products }),
            Err(reason) if self.attempt > 1 => {
                let reason = reason.unwrap_or_else(|| "there are none".to_owned());
                let text = "the algorithms of the attempt before cannot be used";
                self.warn(None, format!(
                    "run.tune_matmul: {text}: {reason}; others are, and results may have other bits"
                ));
            }
            Err(_) => {}
        }
        if let Some(path) = target.cached(&tuner.products()) {
            match usable(&path, target, tuner) {
                Ok(products) => return Ok(Choice { source: TuningSource::Cache, products }),
                Err(Some(reason)) => self.warn(None, format!("run.tune_matmul: {reason}")),
                Err(None) => {}
            }
        }
        let products = trainer.measure_products()?;
        Ok(Choice { source: TuningSource::Measured, products })
    }

    /// Keeps the algorithms for the next attempt, and if they are new for other runs.
    fn keep(&self, target: Target, trainer: &mut Trainer<'_>, choice: &Choice) -> Outcome<()> {
        let Choice { source, products } = choice.clone();
        let cached = trainer.tuner().and_then(|tuner| target.cached(&tuner.products()));
        let content = serde_json::to_vec(&Tuned { target, products });
        let content = content.map_err(|error| Failure::new(ExitCode::Internal, error))?;
        let file = sealed_file::seal(MAGIC, &content);
        if source != TuningSource::Folder {
            files::replace(&self.root.join(FILE_OF_RUN), &file)?;
        }
        if let Some(path) = cached.filter(|_| source == TuningSource::Measured)
            && let Err(error) = sealed_file::publish(&path, &file)
        {
            let path = path.display();
            self.warn(None, format!("run.tune_matmul: not kept for other runs: {path}: {error}"));
        }
        Ok(())
    }

    fn warn_untuned(&self, rank: Option<usize>, text: &str) {
        let text = format!(
            "run.tune_matmul: {text}; all ranks use the algorithms that cuBLASLt offers first"
        );
        self.warn(rank, text);
    }

    fn warn(&self, rank: Option<usize>, text: String) {
        if self.is_rank_0() {
            self.events.warn(Anomaly { step: None, rank, text });
        }
    }
}

/// Reads the algorithms of a file.
///
/// # Errors
/// Returns why they cannot be used; `None` if there is no file.
fn usable(
    path: &Path,
    target: &Target,
    tuner: &mut dyn ProductTuner,
) -> Result<Vec<TunedProduct>, Option<String>> {
    let file = regular_file::read(path, NOTE_BYTES_MAX).map_err(|error| {
        let is_missing = error.source.kind() == ErrorKind::NotFound;
        (!is_missing).then(|| error.to_string())
    })?;
    let content = sealed_file::open(MAGIC, file);
    let tuned = content.and_then(|content| serde_json::from_slice(&content).ok());
    let Some(Tuned { target: found, products }) = tuned else {
        return Err(Some(format!("{}: the file is damaged", path.display())));
    };
    if found != *target {
        return Err(Some(format!("they are for {found}, and this is {target}")));
    }
    match tuner.accepts(&products) {
        true => Ok(products),
        false => Err(Some("cuBLASLt refuses them for the products of this run".to_owned())),
    }
}

fn tuned_products(choice: &Choice) -> TunedProducts {
    let Choice { source, products } = choice;
    let sum = |time: fn(&TunedProduct) -> u64| products.iter().map(time).sum::<u64>() as f64;
    let first_ns = sum(|product| product.first_ns);
    let chosen_ns = sum(|product| product.chosen_ns);
    let mut hasher = Hasher::new();
    for product in products {
        hasher.update(product.product.as_bytes());
        for word in product.algorithm {
            hasher.update(&word.to_le_bytes());
        }
    }
    TunedProducts {
        source: *source,
        products: products.len(),
        changed: products.iter().filter(|product| product.position > 0).count(),
        gain_percent: if first_ns > 0.0 { 100.0 * (1.0 - chosen_ns / first_ns) } else { 0.0 },
        digest: hasher.finalize().to_hex().to_string(),
    }
}

fn sentence(tuned: &TunedProducts) -> String {
    let TunedProducts { source, products, changed, gain_percent, .. } = tuned;
    format!(
        "matrix products: {products} tuned, {changed} of them by another algorithm than the first, \
         {gain_percent:.1} % less time in all; {source}"
    )
}
