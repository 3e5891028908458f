//! A workload: the frozen half of a configuration, and its identity.

pub use record::Compute;
use serde::{Deserialize, Serialize};

use crate::{Error, MicroBatch, ModelConfig};

/// Everything that decides what is computed. Its hash is the workload id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Dimensions of the model.
    pub model: ModelConfig,
    /// Source of tokens.
    pub data: DataConfig,
    /// Number of sequences in a step.
    pub batch: BatchConfig,
    /// Number formats.
    #[serde(default)]
    pub precision: PrecisionConfig,
    /// AdamW.
    #[serde(default)]
    pub optimizer: OptimizerConfig,
    /// Learning rate over steps.
    pub schedule: ScheduleConfig,
}

/// Kind of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataSource {
    /// An endless stream made from the seed.
    Synthetic,
    /// Token files.
    Files,
}

/// The `[data]` section.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Kind of data.
    pub source: DataSource,
    /// Seed of the stream's content or of the order of sequences.
    #[serde(default)]
    pub seed: u64,
    /// Token files, in this order; hashed by content, not by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Token files for evaluation; without them the last sequences of `files` are held out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluation_files: Vec<String>,
    /// Bytes of a token in the files that have no header; 2 if absent. Not hashed: the digest of
    /// the files covers the type of their tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_bytes: Option<usize>,
    /// Sequences of one evaluation.
    #[serde(default = "default_evaluation_sequences")]
    pub evaluation_sequences: usize,
}

fn default_evaluation_sequences() -> usize {
    64
}

/// The `[batch]` section; strong scaling by `global_sequences` or weak by `sequences_per_rank`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchConfig {
    /// B, sequences per rank and micro-batch.
    pub micro_sequences: usize,
    /// T, tokens per sequence.
    pub sequence_tokens: usize,
    /// Sequences per step over all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_sequences: Option<usize>,
    /// Sequences per step and rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequences_per_rank: Option<usize>,
}

/// The `[precision]` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrecisionConfig {
    /// Format of working weights and activations. Master weights, gradients and moments are f32.
    #[serde(default)]
    pub compute: Compute,
}

/// The `[optimizer]` section: AdamW with decoupled decay (Loshchilov, Hutter, arXiv 1711.05101).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled decay of matrices and embeddings (not of norms and biases).
    pub weight_decay: f64,
    /// Largest global gradient norm; larger gradients are scaled down to it. 0 turns clipping off.
    pub gradient_norm_max: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1, gradient_norm_max: 1.0 }
    }
}

/// Shape of the learning rate after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decay {
    /// Half a cosine down to the minimum.
    Cosine,
    /// A straight line down to the minimum.
    Linear,
    /// Constant, then a straight line over the last `decay_steps` (warmup-stable-decay).
    WarmupStableDecay,
}

/// The `[schedule]` section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Steps of the whole schedule.
    pub steps: u64,
    /// Largest learning rate.
    pub learning_rate: f64,
    /// Learning rate at the end.
    #[serde(default)]
    pub learning_rate_min: f64,
    /// Steps of linear warm-up.
    #[serde(default)]
    pub warmup_steps: u64,
    /// Shape after warm-up.
    #[serde(default = "default_decay")]
    pub decay: Decay,
    /// Steps of the final decay; only for warmup-stable-decay.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub decay_steps: u64,
    /// Seed of the initial weights.
    #[serde(default)]
    pub seed: u64,
}

fn default_decay() -> Decay {
    Decay::Cosine
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Workload {
    /// Twelve hexadecimal digits of the BLAKE3 hash of the canonical JSON.
    ///
    /// `data_digest` stands for the content of token files, whose names are left out.
    pub fn id(&self, data_digest: Option<&str>) -> String {
        let mut hashed = self.clone();
        hashed.data.files.clear();
        hashed.data.evaluation_files.clear();
        hashed.data.token_bytes = None;
        let mut json = serde_json::json!(hashed); // objects are sorted maps: canonical
        if let Some(digest) = data_digest {
            json["data"]["digest"] = digest.into();
        }
        blake3::hash(json.to_string().as_bytes()).to_hex()[..12].to_owned()
    }

    /// Checks every value that can be checked without knowing the world.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the key.
    pub fn validate(&self) -> Result<(), Error> {
        self.model.validate()?;
        self.data.validate()?;
        self.batch.validate(&self.model)?;
        self.optimizer.validate()?;
        self.schedule.validate()
    }
}

impl DataConfig {
    fn validate(&self) -> Result<(), Error> {
        if self.source == DataSource::Files && self.files.is_empty() {
            return Err(Error::invalid("data.files", "[]", "at least one file"));
        }
        for (key, files) in
            [("data.files", &self.files), ("data.evaluation_files", &self.evaluation_files)]
        {
            if self.source == DataSource::Synthetic && !files.is_empty() {
                let found = format!("{files:?}");
                return Err(Error::invalid(key, found, "no file with data.source synthetic"));
            }
        }
        if let Some(bytes) = self.token_bytes.filter(|bytes| ![1, 2, 4, 8].contains(bytes)) {
            return Err(Error::invalid("data.token_bytes", bytes, "1, 2, 4 or 8"));
        }
        if self.evaluation_sequences == 0 {
            return Err(Error::invalid("data.evaluation_sequences", 0, "at least 1"));
        }
        Ok(())
    }
}

/// Bound on the sequences of one step: far above any real batch and far below any overflow.
const SEQUENCES_MAX: usize = 1 << 28;

impl BatchConfig {
    fn validate(&self, model: &ModelConfig) -> Result<(), Error> {
        model.check_micro_batch(self.micro_batch())?;
        for (key, found) in [
            ("batch.micro_sequences", Some(self.micro_sequences)),
            ("batch.global_sequences", self.global_sequences),
            ("batch.sequences_per_rank", self.sequences_per_rank),
        ] {
            if let Some(found) = found.filter(|&found| found > SEQUENCES_MAX) {
                let expected = format!("at most {SEQUENCES_MAX} sequences a step");
                return Err(Error::invalid(key, found, expected));
            }
        }
        match (self.global_sequences, self.sequences_per_rank) {
            (Some(_), None) | (None, Some(_)) => Ok(()),
            (found, _) => Err(Error::invalid(
                "batch.global_sequences",
                found.map_or("absent".to_owned(), |value| value.to_string()),
                "exactly one of batch.global_sequences and batch.sequences_per_rank",
            )),
        }
    }

    /// Batch that an engine computes at a time.
    pub fn micro_batch(&self) -> MicroBatch {
        MicroBatch { sequences: self.micro_sequences, tokens: self.sequence_tokens }
    }

    /// Sequences of one step over all `world` ranks.
    pub fn global_sequences(&self, world: usize) -> usize {
        self.global_sequences.or(self.sequences_per_rank.map(|n| n * world)).unwrap_or(0)
    }

    /// Micro-batches per step and rank.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the global batch does not divide.
    pub fn accumulation(&self, world: usize) -> Result<usize, Error> {
        let global = self.global_sequences(world);
        let chunk = self.micro_sequences * world;
        if global == 0 || !global.is_multiple_of(chunk) {
            let (key, found) = match self.sequences_per_rank {
                Some(per_rank) => ("batch.sequences_per_rank", per_rank),
                None => ("batch.global_sequences", global),
            };
            let expected = format!(
                "a multiple of batch.micro_sequences = {} x {world} ranks",
                self.micro_sequences
            );
            return Err(Error::invalid(key, found, expected));
        }
        Ok(global / chunk)
    }
}

impl OptimizerConfig {
    fn validate(&self) -> Result<(), Error> {
        for (key, value) in [("optimizer.beta1", self.beta1), ("optimizer.beta2", self.beta2)] {
            if !(0.0..1.0).contains(&value) {
                return Err(Error::invalid(key, value, "a number in [0, 1)"));
            }
        }
        if !(self.epsilon > 0.0 && self.epsilon.is_finite()) {
            return Err(Error::invalid("optimizer.epsilon", self.epsilon, "a number above 0"));
        }
        for (key, value) in [
            ("optimizer.weight_decay", self.weight_decay),
            ("optimizer.gradient_norm_max", self.gradient_norm_max),
        ] {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(Error::invalid(key, value, "a finite number of at least 0"));
            }
        }
        Ok(())
    }
}

impl ScheduleConfig {
    fn validate(&self) -> Result<(), Error> {
        if self.steps == 0 {
            return Err(Error::invalid("schedule.steps", 0, "at least 1"));
        }
        if !(self.learning_rate > 0.0 && self.learning_rate.is_finite()) {
            let key = "schedule.learning_rate";
            return Err(Error::invalid(key, self.learning_rate, "a finite number above 0"));
        }
        if !(0.0..=self.learning_rate).contains(&self.learning_rate_min) {
            let expected = format!("0 to schedule.learning_rate = {}", self.learning_rate);
            let key = "schedule.learning_rate_min";
            return Err(Error::invalid(key, self.learning_rate_min, expected));
        }
        if self.warmup_steps > self.steps {
            let expected = format!("at most schedule.steps = {}", self.steps);
            return Err(Error::invalid("schedule.warmup_steps", self.warmup_steps, expected));
        }
        let steps_max = self.steps - self.warmup_steps;
        if self.decay_steps > steps_max {
            let expected = format!("at most steps - warmup_steps = {steps_max}");
            return Err(Error::invalid("schedule.decay_steps", self.decay_steps, expected));
        }
        if self.decay_steps > 0 && self.decay != Decay::WarmupStableDecay {
            let expected = "0, unless schedule.decay is \"warmup-stable-decay\"";
            return Err(Error::invalid("schedule.decay_steps", self.decay_steps, expected));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
