//! Which of their tensors is which part of ours.

use std::ops::Range;

use models::ModelConfig;
use models::config::Family;
use models::layout::Tensor;

/// One of their tensors: some rows of one of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// Their name, as `GPT2LMHeadModel` and `LlamaForCausalLM` save it.
    pub(super) name: String,
    /// Rows of our tensor; elements of a vector.
    pub(super) rows: Range<usize>,
    /// Elements of one row; 1 for a vector.
    pub(super) columns: usize,
    /// Their shape.
    pub(super) shape: Vec<usize>,
    /// Whether theirs is (in, out).
    pub(super) is_transposed: bool,
}

impl Piece {
    /// Elements of our tensor.
    pub(super) fn elements(&self) -> Range<usize> {
        self.rows.start * self.columns..self.rows.end * self.columns
    }
}

/// What their model saves in front of every name but the head's. A bare model saves names without.
pub(super) fn prefix(config: &ModelConfig) -> &'static str {
    match config.family {
        Family::Gpt => "transformer.",
        Family::Llama(_) => "model.",
    }
}

/// Their tensors of one of ours, in the order of our rows.
pub(super) fn pieces(config: &ModelConfig, tensor: &Tensor) -> Vec<Piece> {
    let name = tensor.name.as_str();
    match config.family {
        Family::Gpt => {
            let is_linear = tensor.shape.len() == 2 && name.starts_with("h.");
            vec![piece(tensor, format!("transformer.{name}"), 0..tensor.shape[0], is_linear)]
        }
        Family::Llama(_) => llama(config, tensor),
    }
}

fn llama(config: &ModelConfig, tensor: &Tensor) -> Vec<Piece> {
    let whole = |name: String| vec![piece(tensor, name, 0..tensor.shape[0], false)];
    let Some(rest) = tensor.name.strip_prefix("h.") else {
        return whole(match tensor.name.as_str() {
            "wte.weight" => "model.embed_tokens.weight".to_owned(),
            "ln_f.weight" => "model.norm.weight".to_owned(),
            head => head.to_owned(),
        });
    };
    let (layer, part) = rest.split_once('.').unwrap_or((rest, ""));
    let theirs = |part: &str| format!("model.layers.{layer}.{part}.weight");
    let cut = |parts: &[(&str, usize)]| {
        let mut start = 0;
        let cut = |&(part, rows): &(&str, usize)| {
            start += rows;
            piece(tensor, theirs(part), start - rows..start, false)
        };
        parts.iter().map(cut).collect()
    };
    let head_width = config.head_width();
    let groups = config.key_value_heads() * head_width;
    match part {
        "ln_1.weight" => whole(theirs("input_layernorm")),
        "ln_2.weight" => whole(theirs("post_attention_layernorm")),
        "attn.c_proj.weight" => whole(theirs("self_attn.o_proj")),
        "mlp.c_proj.weight" => whole(theirs("mlp.down_proj")),
        "mlp.gate_up.weight" => {
            cut(&[("mlp.gate_proj", config.feed_forward), ("mlp.up_proj", config.feed_forward)])
        }
        "attn.c_attn.weight" => cut(&[
            ("self_attn.q_proj", config.heads * head_width),
            ("self_attn.k_proj", groups),
            ("self_attn.v_proj", groups),
        ]),
        _ => unreachable!("{}: no tensor of the Llama family", tensor.name),
    }
}

fn piece(tensor: &Tensor, name: String, rows: Range<usize>, is_transposed: bool) -> Piece {
    let columns = tensor.shape.get(1).copied().unwrap_or(1);
    let shape = match tensor.shape.len() {
        1 => vec![rows.len()],
        _ if is_transposed => vec![columns, rows.len()],
        _ => vec![rows.len(), columns],
    };
    Piece { name, rows, columns, shape, is_transposed }
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
