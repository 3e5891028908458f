//! The workload of a record in words. It is read from its configuration alone, so that records of
//! models which this version cannot train also have a page.

use record::Record;
use record::text::number_format::{count, scaled, thousands};
use serde_json::Value;

/// Maximum dimension of a model, with which all numbers below fit into 128 bits.
const DIMENSION_MAX: u64 = 1 << 24;

/// Dimensions of a model that a page shows.
struct Model {
    family: &'static str,
    parameters: u64,
    layers: u64,
    width: u64,
    heads: u64,
}

impl Model {
    /// Reads the dimensions; `None` if they cannot be those of a model.
    fn of(record: &Record) -> Option<Self> {
        let config = record.workload.config.get("model")?;
        let family = match config.get("family")?.as_str()? {
            "gpt" => "GPT",
            "llama" => "Llama",
            _ => return None,
        };
        let parameters = parameters(config)?;
        let [layers, width, heads] = ["layers", "width", "heads"].map(|key| dimension(config, key));
        Some(Self { family, parameters, layers: layers?, width: width?, heads: heads? })
    }
}

/// Reads a dimension that a model can have.
fn dimension(model: &Value, key: &str) -> Option<u64> {
    model.get(key)?.as_u64().filter(|number| (1..=DIMENSION_MAX).contains(number))
}

/// Counts the parameters, N: embeddings of tokens (and of positions in GPT), a head unless it
/// shares the token table, and in each layer norms, attention and feed-forward. `None` if the
/// dimensions cannot be those of a model.
///
/// `models::Layout` lists the parameters one by one; a test of the command line compares both.
pub fn parameters(model: &Value) -> Option<u64> {
    let number = |key: &str| dimension(model, key).map(u128::from);
    let [layers, width, heads] = [number("layers")?, number("width")?, number("heads")?];
    let [inner, vocabulary] = [number("feed_forward")?, number("vocabulary")?];
    let context = number("context")?;
    if vocabulary < 2 || !width.is_multiple_of(heads) {
        return None;
    }
    let found = if model.get("family")?.as_str()? == "gpt" {
        // Matrices with their biases, and two norms with theirs.
        let layer = 4 * width * width + 2 * width * inner + 9 * width + inner;
        (vocabulary + context) * width + layers * layer + 2 * width
    } else {
        let key_value_heads = match model.get("key_value_heads") {
            None | Some(Value::Null) => heads,
            Some(_) => number("key_value_heads")?,
        };
        if !heads.is_multiple_of(key_value_heads) {
            return None;
        }
        let key_value_width = width / heads * key_value_heads;
        let matrices = 2 * width * width + 2 * width * key_value_width + 3 * width * inner;
        let is_tied = model.get("tied").and_then(Value::as_bool).unwrap_or_default();
        let tables = if is_tied { 1 } else { 2 };
        tables * vocabulary * width + layers * (matrices + 2 * width) + width
    };
    u64::try_from(found).ok()
}

/// Formats family, parameters and dimensions.
pub(super) fn model(record: &Record) -> Option<String> {
    let Model { family, parameters, layers, width, heads } = Model::of(record)?;
    let parameters = thousands(parameters as f64);
    let layers = count(layers as usize, "layer");
    Some(format!("{family}, {parameters} parameters: {layers}, width {width}, {heads} heads"))
}

/// Formats the model in a few characters, as in "GPT 124M".
pub(super) fn short_model(record: &Record) -> Option<String> {
    let Model { family, parameters, .. } = Model::of(record)?;
    Some(format!("{family} {}", scaled(parameters as f64, "").replace(' ', "")))
}

fn batch_number(record: &Record, key: &str) -> Option<u64> {
    record.workload.config.get("batch")?.get(key)?.as_u64()
}

/// Formats sequences and tokens of a step.
pub(super) fn batch(record: &Record, world: usize) -> Option<String> {
    let of_all = batch_number(record, "global_sequences");
    let of_ranks = || batch_number(record, "sequences_per_rank")?.checked_mul(world as u64);
    let sequences = of_all.or_else(of_ranks)?;
    let each = batch_number(record, "micro_sequences")?;
    let tokens = thousands(sequences as f64 * batch_number(record, "sequence_tokens")? as f64);
    let sequences = count(sequences as usize, "sequence");
    Some(format!("{sequences}, {tokens} tokens a step; {each} a rank and micro-batch"))
}

/// Formats the length of a sequence.
pub(super) fn sequence(record: &Record) -> Option<String> {
    let tokens = batch_number(record, "sequence_tokens")?;
    Some(format!("{} tokens", thousands(tokens as f64)))
}

/// Formats the number format of the computation.
pub(super) fn precision(record: &Record) -> Option<String> {
    let compute = record.workload.config.get("precision")?.get("compute")?.as_str()?;
    ["f32", "bf16"].contains(&compute).then(|| compute.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn llama() -> Value {
        json!({
            "family": "llama", "layers": 2, "width": 24, "heads": 6, "feed_forward": 33,
            "vocabulary": 101, "context": 19
        })
    }

    fn with(key: &str, value: &Value) -> Option<u64> {
        let mut model = llama();
        model[key] = value.clone();
        parameters(&model)
    }

    #[test]
    fn keys_that_are_absent_have_their_defaults() {
        let untied = 2 * 101 * 24 + 2 * (4 * 24 * 24 + 3 * 24 * 33 + 2 * 24) + 24;
        assert_eq!(parameters(&llama()), Some(untied));
        assert_eq!(with("key_value_heads", &Value::Null), Some(untied));
        assert_eq!(with("tied", &json!(true)), Some(untied - 101 * 24));
        let of_keys_and_values = 2 * 2 * 24 * (24 - 8);
        assert_eq!(with("key_value_heads", &json!(2)), Some(untied - of_keys_and_values));
    }

    #[test]
    fn what_cannot_be_a_model_has_no_parameters() {
        let impossible = [
            ("layers", json!(0)),
            ("width", json!(25)),
            ("heads", json!(-6)),
            ("key_value_heads", json!(4)),
            ("key_value_heads", json!("2")),
            ("vocabulary", json!(1)),
            ("context", json!(0)),
            ("feed_forward", json!(u64::MAX)),
        ];
        for (key, value) in impossible {
            assert_eq!(with(key, &value), None, "{key} = {value}");
        }
    }
}
