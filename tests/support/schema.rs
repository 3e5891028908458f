//! Validation of every record that a test reads against `docs/record.schema.json`.

use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/record.schema.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    jsonschema::options().should_validate_formats(true).build(&schema).unwrap()
});

/// Fails with everything that is wrong with a record, each with its place.
#[track_caller]
pub fn expect_valid(record: &Value) {
    let wrong: Vec<String> = VALIDATOR
        .iter_errors(record)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(
        wrong.is_empty(),
        "the record is not of docs/record.schema.json:\n{}",
        wrong.join("\n")
    );
}
