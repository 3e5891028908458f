//! The workload of a record in words. It is read from its configuration alone, so that records of
//! models which this version cannot train have a page too.

use record::Record;
use record::text::number_format::{count, scaled, thousands};
use serde_json::Value;

/// Dimensions of a model that a page shows.
struct Model {
    family: &'static str,
    parameters: u64,
    layers: u64,
    width: u64,
    heads: u64,
}

impl Model {
    /// `None` where the dimensions cannot be those of a model.
    fn of(record: &Record) -> Option<Self> {
        let config = record.workload.config.get("model")?;
        let number = |key: &str| config.get(key)?.as_u64().filter(|number| *number > 0);
        let family = match config.get("family")?.as_str()? {
            "gpt" => "GPT",
            "llama" => "Llama",
            _ => return None,
        };
        let [layers, width, heads] = [number("layers")?, number("width")?, number("heads")?];
        let parameters = parameters(config)?;
        Some(Self { family, parameters, layers, width, heads })
    }
}

/// N, the number of parameters: embeddings of tokens (and of positions in GPT), a head that is not
/// the table of tokens, and in each layer norms, attention and feed-forward.
///
/// `models::Layout` has them one by one; a test of the command line compares both.
pub fn parameters(model: &Value) -> Option<u64> {
    let number = |key: &str| model.get(key)?.as_u64();
    let [layers, width, heads] = [number("layers")?, number("width")?, number("heads")?];
    let [inner, vocabulary] = [number("feed_forward")?, number("vocabulary")?];
    let sum = |terms: &[Option<u64>]| terms.iter().copied().sum::<Option<u64>>();
    let square = width.checked_mul(width)?;
    let wide = width.checked_mul(inner)?;
    let embedding = vocabulary.checked_mul(width)?;
    if model.get("family")?.as_str()? == "gpt" {
        let positions = number("context")?.checked_mul(width)?;
        // Matrices with their biases, and two norms with theirs.
        let layer = sum(&[
            square.checked_mul(4),
            wide.checked_mul(2),
            width.checked_mul(4 + 1 + 4),
            Some(inner),
        ])?;
        return sum(&[
            Some(embedding),
            Some(positions),
            layers.checked_mul(layer),
            Some(2 * width),
        ]);
    }
    let kv_heads = number("key_value_heads").unwrap_or(heads);
    let kv_width = (width / heads.max(1)).checked_mul(kv_heads)?;
    let layer = sum(&[
        square.checked_mul(2),
        width.checked_mul(kv_width)?.checked_mul(2),
        wide.checked_mul(3),
        Some(2 * width),
    ])?;
    let is_tied = model.get("tied").and_then(Value::as_bool).unwrap_or_default();
    let tables = if is_tied { 1 } else { 2 };
    sum(&[embedding.checked_mul(tables), layers.checked_mul(layer), Some(width)])
}

/// Family, parameters and dimensions.
pub(super) fn model(record: &Record) -> Option<String> {
    let Model { family, parameters, layers, width, heads } = Model::of(record)?;
    let parameters = thousands(parameters as f64);
    let layers = count(layers as usize, "layer");
    Some(format!("{family}, {parameters} parameters: {layers}, width {width}, {heads} heads"))
}

/// The model in a few characters, as in "GPT 124M".
pub(super) fn short_model(record: &Record) -> Option<String> {
    let Model { family, parameters, .. } = Model::of(record)?;
    Some(format!("{family} {}", scaled(parameters as f64, "").replace(' ', "")))
}

fn batch_number(record: &Record, key: &str) -> Option<u64> {
    record.workload.config.get("batch")?.get(key)?.as_u64()
}

/// Sequences and tokens of a step.
pub(super) fn batch(record: &Record, world: usize) -> Option<String> {
    let of_all = batch_number(record, "global_sequences");
    let of_ranks = || batch_number(record, "sequences_per_rank")?.checked_mul(world as u64);
    let sequences = of_all.or_else(of_ranks)?;
    let each = batch_number(record, "micro_sequences")?;
    let tokens = thousands(sequences as f64 * batch_number(record, "sequence_tokens")? as f64);
    let sequences = count(sequences as usize, "sequence");
    Some(format!("{sequences}, {tokens} tokens a step; {each} a rank and micro-batch"))
}

/// Length of a sequence.
pub(super) fn sequence(record: &Record) -> Option<String> {
    let tokens = batch_number(record, "sequence_tokens")?;
    Some(format!("{} tokens", thousands(tokens as f64)))
}

/// Number format of the computation.
pub(super) fn precision(record: &Record) -> Option<String> {
    let compute = record.workload.config.get("precision")?.get("compute")?.as_str()?;
    Some(compute.to_owned())
}
