//! Folders in the form of Hugging Face transformers: `config.json` and safetensors.
//!
//! Our tensors are cut and turned into theirs and back: GPT-2's `Conv1D` weights are (in, out) and
//! ours (out, in); Llama's queries, keys and values are three tensors, ours one; gate and up two.

mod description;
mod export;
mod header;
mod import;
#[cfg(test)]
mod parity;
mod partial;
mod pieces;
mod stored;
#[cfg(test)]
mod tests;

pub(crate) use export::export;
pub(crate) use import::Import;
pub(crate) use stored::PART_BYTES;

/// The description of the model.
const CONFIG: &str = "config.json";
/// All weights in one file.
const WEIGHTS: &str = "model.safetensors";
/// Which file of several has which tensor.
const INDEX: &str = "model.safetensors.index.json";
