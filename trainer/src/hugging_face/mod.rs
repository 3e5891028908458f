//! Model folders of Hugging Face transformers: `config.json` and safetensors.
//!
//! Our tensors are split and transposed into those of transformers and back: GPT-2's `Conv1D`
//! weights are (in, out) and ours (out, in); Llama's queries, keys and values are three tensors and
//! ours one, its gate and up two and ours one.

mod config_json;
mod errors;
mod export;
mod file_names;
mod import;
#[cfg(test)]
mod parity;
mod safetensors_header;
mod staging_folder;
mod tensor_mapping;
mod tensor_reader;
#[cfg(test)]
mod tests;

pub use export::export;
pub(crate) use import::Import;
pub(crate) use tensor_reader::BUFFER_BYTES;
