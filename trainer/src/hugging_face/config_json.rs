//! Writing of `config.json`, and its comparison with a workload.

use models::ModelConfig;
use models::config::{Family, Llama, RopeScaling};
use serde_json::{Value, json};

/// Value that determines what is computed.
struct Field {
    /// Key; dots separate the keys of nested objects.
    key: &'static str,
    ours: Value,
    /// Default of transformers where the value is absent or null; null where it is required.
    default: Value,
}

fn field(key: &'static str, ours: impl Into<Value>, default: impl Into<Value>) -> Field {
    Field { key, ours: ours.into(), default: default.into() }
}

fn fields(config: &ModelConfig) -> Vec<Field> {
    match &config.family {
        Family::Gpt => gpt(config),
        Family::Llama(llama) => self::llama(config, llama),
    }
}

fn gpt(config: &ModelConfig) -> Vec<Field> {
    vec![
        field("model_type", "gpt2", Value::Null),
        field("n_layer", config.layers, Value::Null),
        field("n_embd", config.width, Value::Null),
        field("n_head", config.heads, Value::Null),
        field("n_inner", config.feed_forward, 4 * config.width),
        field("vocab_size", config.vocabulary, Value::Null),
        field("n_positions", config.context, Value::Null),
        field("activation_function", "gelu_new", "gelu_new"),
        field("layer_norm_epsilon", models::ops::layer_norm::EPSILON, 1e-5),
        field("scale_attn_weights", true, true),
        field("scale_attn_by_inverse_layer_idx", false, false),
        field("tie_word_embeddings", true, true),
    ]
}

fn llama(config: &ModelConfig, llama: &Llama) -> Vec<Field> {
    let mut fields = vec![
        field("model_type", "llama", Value::Null),
        field("num_hidden_layers", config.layers, Value::Null),
        field("hidden_size", config.width, Value::Null),
        field("num_attention_heads", config.heads, Value::Null),
        field("num_key_value_heads", llama.key_value_heads, config.heads),
        field("head_dim", config.head_width(), config.head_width()),
        field("intermediate_size", config.feed_forward, Value::Null),
        field("vocab_size", config.vocabulary, Value::Null),
        field("hidden_act", "silu", "silu"),
        field("rms_norm_eps", llama.norm_epsilon, 1e-6),
        field("rope_theta", llama.rope_theta, 10_000.0),
        field("attention_bias", false, false),
        field("mlp_bias", false, false),
        field("tie_word_embeddings", llama.tied, false),
    ];
    let scaling = llama.rope_scaling;
    fields.push(field(
        "rope_scaling.rope_type",
        scaling.map_or("default", |_| "llama3"),
        "default",
    ));
    if let Some(RopeScaling { factor, low_freq_factor, high_freq_factor, original_context }) =
        scaling
    {
        fields.extend([
            field("rope_scaling.factor", factor, Value::Null),
            field("rope_scaling.low_freq_factor", low_freq_factor, Value::Null),
            field("rope_scaling.high_freq_factor", high_freq_factor, Value::Null),
            field("rope_scaling.original_max_position_embeddings", original_context, Value::Null),
        ]);
    }
    fields
}

/// Returns the configuration of a model in f32.
pub(super) fn write(config: &ModelConfig) -> Value {
    let architecture = match config.family {
        Family::Gpt => "GPT2LMHeadModel",
        Family::Llama(_) => "LlamaForCausalLM",
    };
    let mut json = json!({
        "architectures": [architecture],
        "torch_dtype": "float32",
        "bos_token_id": null,
        "eos_token_id": null,
    });
    let unused: &[(&str, Value)] = match config.family {
        Family::Gpt => {
            &[("attn_pdrop", json!(0.0)), ("embd_pdrop", json!(0.0)), ("resid_pdrop", json!(0.0))]
        }
        Family::Llama(_) => &[("max_position_embeddings", json!(config.context))],
    };
    for (key, value) in unused {
        json[key] = value.clone();
    }
    for Field { key, ours, .. } in fields(config) {
        match key.split_once('.') {
            None => json[key] = ours,
            Some(("rope_scaling", "rope_type")) if ours == "default" => {}
            Some((outer, inner)) => json[outer][inner] = ours,
        }
    }
    json
}

/// Checks that a configuration matches this model; the error names the first value that does not.
pub(super) fn check(config: &ModelConfig, mut json: Value) -> Result<(), String> {
    normalize_rope(&mut json);
    for Field { key, ours, default } in fields(config) {
        let pointer = format!("/{}", key.replace('.', "/"));
        let found = json.pointer(&pointer).filter(|value| !value.is_null());
        let found = found.unwrap_or(&default);
        let is_same = match (found.as_f64(), ours.as_f64()) {
            (Some(found), Some(ours)) => found == ours,
            _ => *found == ours,
        };
        if !is_same {
            let found = if found.is_null() { "nothing".to_owned() } else { found.to_string() };
            return Err(format!("{key}: expected {ours} for this workload, found {found}"));
        }
    }
    Ok(())
}

/// Converts keys of RoPE's values of other versions: transformers 5 has all of them in
/// `rope_parameters`, and early versions have `type` for `rope_type`.
fn normalize_rope(json: &mut Value) {
    if let Some(parameters) = json.get_mut("rope_parameters").map(Value::take)
        && parameters.is_object()
    {
        if let Some(theta) = parameters.get("rope_theta") {
            json["rope_theta"] = theta.clone();
        }
        json["rope_scaling"] = parameters;
    }
    if let Some(scaling) = json.get_mut("rope_scaling").and_then(Value::as_object_mut)
        && let Some(kind) = scaling.remove("type")
    {
        scaling.entry("rope_type").or_insert(kind);
    }
}
