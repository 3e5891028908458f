//! Mapping between tensors of transformers and rows of our tensors.

use std::ops::Range;

use models::ModelConfig;
use models::config::Family;
use models::layout::Tensor;

/// Tensor of transformers, which is a range of rows of one of our tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HfTensor {
    /// Name, as `GPT2LMHeadModel` and `LlamaForCausalLM` save it.
    pub(super) name: String,
    /// Rows of our tensor; elements of a vector.
    pub(super) rows: Range<usize>,
    /// Elements of one row of our tensor; 1 for a vector.
    pub(super) columns: usize,
    /// Shape of the tensor.
    pub(super) shape: Vec<usize>,
    /// True if the tensor is (in, out) where ours is (out, in).
    pub(super) is_transposed: bool,
}

impl HfTensor {
    /// Returns the range of its elements in our tensor.
    pub(super) fn elements(&self) -> Range<usize> {
        self.rows.start * self.columns..self.rows.end * self.columns
    }
}

/// Returns the prefix of every name but the head's. A model that was saved without its head has
/// none.
pub(super) fn prefix(config: &ModelConfig) -> &'static str {
    match config.family {
        Family::Gpt => "transformer.",
        Family::Llama(_) => "model.",
    }
}

/// Name of the head, which has no prefix.
pub(super) const HEAD: &str = "lm_head.weight";

/// Returns the name of the token table, which is also the head of a tied model.
pub(super) fn token_table(config: &ModelConfig) -> &'static str {
    match config.family {
        Family::Gpt => "transformer.wte.weight",
        Family::Llama(_) => "model.embed_tokens.weight",
    }
}

/// Returns the tensors of transformers that make up one of ours, in the order of our rows.
pub(super) fn hf_tensors(config: &ModelConfig, tensor: &Tensor) -> Vec<HfTensor> {
    let name = tensor.name.as_str();
    match config.family {
        Family::Gpt => {
            let is_linear = tensor.shape.len() == 2 && name.starts_with("h.");
            vec![hf_tensor(tensor, format!("transformer.{name}"), 0..tensor.shape[0], is_linear)]
        }
        Family::Llama(_) => llama(config, tensor),
    }
}

fn llama(config: &ModelConfig, tensor: &Tensor) -> Vec<HfTensor> {
    let whole = |name: String| vec![hf_tensor(tensor, name, 0..tensor.shape[0], false)];
    let Some(rest) = tensor.name.strip_prefix("h.") else {
        return whole(match tensor.name.as_str() {
            "wte.weight" => token_table(config).to_owned(),
            "ln_f.weight" => "model.norm.weight".to_owned(),
            head => head.to_owned(),
        });
    };
    let (layer, part) = rest.split_once('.').unwrap_or((rest, ""));
    let name_of = |part: &str| format!("model.layers.{layer}.{part}.weight");
    let split = |parts: &[(&str, usize)]| {
        let mut start = 0;
        let split = |&(part, rows): &(&str, usize)| {
            start += rows;
            hf_tensor(tensor, name_of(part), start - rows..start, false)
        };
        parts.iter().map(split).collect()
    };
    let head_width = config.head_width();
    let key_value_rows = config.key_value_heads() * head_width;
    match part {
        "ln_1.weight" => whole(name_of("input_layernorm")),
        "ln_2.weight" => whole(name_of("post_attention_layernorm")),
        "attn.c_proj.weight" => whole(name_of("self_attn.o_proj")),
        "mlp.c_proj.weight" => whole(name_of("mlp.down_proj")),
        "mlp.gate_up.weight" => {
            split(&[("mlp.gate_proj", config.feed_forward), ("mlp.up_proj", config.feed_forward)])
        }
        "attn.c_attn.weight" => split(&[
            ("self_attn.q_proj", config.heads * head_width),
            ("self_attn.k_proj", key_value_rows),
            ("self_attn.v_proj", key_value_rows),
        ]),
        _ => unreachable!("{}: not a tensor of the Llama family", tensor.name),
    }
}

fn hf_tensor(tensor: &Tensor, name: String, rows: Range<usize>, is_transposed: bool) -> HfTensor {
    let columns = tensor.shape.get(1).copied().unwrap_or(1);
    let shape = match tensor.shape.len() {
        1 => vec![rows.len()],
        _ if is_transposed => vec![columns, rows.len()],
        _ => vec![rows.len(), columns],
    };
    HfTensor { name, rows, columns, shape, is_transposed }
}

/// Writes `from` (rows, columns) as (columns, rows).
pub(super) fn transpose(to: &mut [f32], from: &[f32], columns: usize) {
    let rows = from.len() / columns;
    for (column, to) in to.chunks_exact_mut(rows).enumerate() {
        for (to, row) in to.iter_mut().zip(from.chunks_exact(columns)) {
            *to = row[column];
        }
    }
}
