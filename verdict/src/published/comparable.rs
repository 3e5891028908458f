//! Checks that a run did the published work: the same model in the same precision on the same
//! device.

use record::{Record, Unusable};
use serde_json::Value;

use super::rows::{Published, Shape};

/// Requires a complete run without faults that did the same work.
///
/// # Errors
/// The differences in words.
pub(super) fn require_same_work(record: &Record, published: &Published) -> Result<(), String> {
    match record.unusable() {
        Some(unusable @ Unusable::FewSteps(_)) => {
            return Err(format!("{unusable}\n  hint: more --steps"));
        }
        Some(unusable) => return Err(unusable.to_string()),
        None => {}
    }
    let differences = [
        other_model(&record.workload.config["model"], &published.shape),
        other_precision(&record.workload.config, &published.precision),
        other_device(record, &published.driver_name),
    ];
    let differences: Vec<String> = differences.into_iter().flatten().collect();
    if differences.is_empty() { Ok(()) } else { Err(differences.join("; ")) }
}

fn other_model(model: &Value, shape: &Shape) -> Option<String> {
    let differs = |(key, expected): (&String, &Value)| {
        let found = dimension(model, key);
        (found != *expected).then(|| format!("{key} = {expected} (found {found})"))
    };
    let differences: Vec<String> = shape.iter().filter_map(differs).collect();
    (!differences.is_empty()).then(|| format!("expected a model of {}", differences.join(", ")))
}

/// Value of a key of `[model]`; absent ones have their defaults.
fn dimension(model: &Value, key: &str) -> Value {
    match (key, &model[key]) {
        ("tied", Value::Null) => Value::Bool(false),
        ("key_value_heads", Value::Null) => model["heads"].clone(),
        (_, value) => value.clone(),
    }
}

fn other_precision(config: &Value, expected: &str) -> Option<String> {
    let found = config["precision"]["compute"].as_str();
    (found != Some(expected)).then(|| {
        let found = found.unwrap_or("null");
        format!("expected products in {expected}, found {found}")
    })
}

/// Finds the first rank on another device.
fn other_device(record: &Record, expected: &str) -> Option<String> {
    record.ranks.iter().find_map(|rank| {
        let found = rank.device.as_ref().map_or("a CPU", |device| device.name.as_str());
        (found != expected)
            .then(|| format!("expected {expected}, found {found} on rank {}", rank.rank))
    })
}
