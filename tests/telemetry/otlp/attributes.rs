//! Reader of OpenTelemetry attributes.

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;

/// The value of an attribute.
#[track_caller]
pub(crate) fn attribute<'a>(attributes: &'a [KeyValue], name: &str) -> &'a Value {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    let value = found.and_then(|found| found.value.as_ref()).and_then(|it| it.value.as_ref());
    value.unwrap_or_else(|| panic!("no {name} in {attributes:?}"))
}

#[track_caller]
pub(crate) fn text<'a>(attributes: &'a [KeyValue], name: &str) -> &'a str {
    match attribute(attributes, name) {
        Value::StringValue(text) => text,
        other => panic!("{name}: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn integer(attributes: &[KeyValue], name: &str) -> u64 {
    match attribute(attributes, name) {
        Value::IntValue(number) => u64::try_from(*number).unwrap(),
        other => panic!("{name}: {other:?}"),
    }
}
