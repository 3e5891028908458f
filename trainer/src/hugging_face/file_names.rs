//! Names of the files in a model folder.

/// The model's configuration.
pub(super) const CONFIG: &str = "config.json";
/// All weights in one file.
pub(super) const WEIGHTS: &str = "model.safetensors";
/// Which of several files holds which tensor.
pub(super) const INDEX: &str = "model.safetensors.index.json";
