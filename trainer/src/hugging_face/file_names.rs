//! Names of the files in a model folder.

/// Configuration of the model.
pub(super) const CONFIG: &str = "config.json";
/// File with all weights.
pub(super) const WEIGHTS: &str = "model.safetensors";
/// Index of several weight files: which file holds which tensor.
pub(super) const INDEX: &str = "model.safetensors.index.json";
