//! Detection of inputs that are not plain text: JSON, whose braces would become tokens, and binary
//! files.

use std::path::Path;

use serde_json::{Map, Value};

use crate::data::error::DataError;
use crate::data::file_kind::FileKind;
use crate::data::text_head::BYTE_ORDER_MARK;

/// Advice for text that only looks like something else.
const AS_TEXT: &str = "--as-text takes it as it is";

/// Kind of an input that is not text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotText {
    found: String,
    hint: String,
}

impl NotText {
    pub(super) fn error(self, path: &Path) -> DataError {
        let Self { found, hint } = self;
        DataError::NotText { path: path.to_owned(), found, hint }
    }
}

/// Identifies a file by its first bytes, unless it is text.
pub(super) fn find(head: &[u8]) -> Option<NotText> {
    let NotText { found, hint } = find_binary(head).or_else(|| find_json(head))?;
    Some(NotText { found, hint: format!("{hint}; {AS_TEXT}") })
}

/// Recognises a binary file by its first bytes, or a byte 0, which is in no text.
pub(super) fn find_binary(head: &[u8]) -> Option<NotText> {
    if let Some(kind) = FileKind::of(head) {
        let hint = kind.hint_for_text.to_owned();
        return Some(NotText { found: kind.name.to_owned(), hint });
    }
    let position = head.iter().position(|byte| *byte == 0)?;
    let found = format!("a byte 0 at byte {position}: a binary file or UTF-16");
    Some(NotText { found, hint: "name a text file, in UTF-8".to_owned() })
}

/// Recognises JSON lines, and a file that is one JSON value, by its first value. Its end may be
/// missing: `head` is only the beginning of the file.
fn find_json(head: &[u8]) -> Option<NotText> {
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head).trim_ascii_start();
    find_objects(head).or_else(|| find_arrays_or_strings(head))
}

/// Recognises an array, or strings, at the end of a line: prose may begin with `[1]` or a quote.
fn find_arrays_or_strings(head: &[u8]) -> Option<NotText> {
    let mut values = serde_json::Deserializer::from_slice(head).into_iter::<Value>();
    let mut next_kind = || {
        let kind = match values.next()? {
            Ok(Value::Array(elements)) if !matches!(elements[..], [] | [Value::Number(_)]) => {
                "a JSON array"
            }
            Ok(Value::String(_)) => "JSON strings",
            Err(error) if error.is_eof() && head.starts_with(b"[") => return Some("a JSON array"),
            _ => return None,
        };
        let rest = &head[values.byte_offset()..];
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        line.trim_ascii().is_empty().then_some(kind)
    };
    let found = next_kind()?;
    if found == "JSON strings" && next_kind() != Some(found) {
        return None;
    }
    let hint = "make JSON lines of it, with a document as {\"text\": \"...\"} in each line: \
        --jsonl text takes the text of this field of each line";
    Some(NotText { found: found.to_owned(), hint: hint.to_owned() })
}

/// Recognises objects, or an array of them.
fn find_objects(head: &[u8]) -> Option<NotText> {
    let array = head.strip_prefix(b"[");
    let object = array.unwrap_or(head).trim_ascii_start();
    if !object.strip_prefix(b"{")?.trim_ascii_start().starts_with(b"\"") {
        return None;
    }
    let mut objects = serde_json::Deserializer::from_slice(object).into_iter();
    let first: Result<Map<String, Value>, _> = objects.next()?;
    let field = match &first {
        Ok(object) => text_field(object),
        Err(error) if error.is_eof() => "text",
        Err(_) => return None,
    };
    let lines = format!("--jsonl {field} takes the text of this field of each line");
    let (found, hint) = match array {
        Some(_) => ("a JSON array", format!("make JSON lines of it, with `jq -c '.[]'`: {lines}")),
        None => ("JSON", lines),
    };
    Some(NotText { found: found.to_owned(), hint })
}

/// Returns the field that most likely has the document: `text`, or that with the longest text.
fn text_field(object: &Map<String, Value>) -> &str {
    let length = |value: &Value| value.as_str().map(str::len);
    let longest = object.iter().max_by_key(|(_, value)| length(value));
    match longest {
        Some((name, Value::String(_))) if !object.contains_key("text") => name,
        _ => "text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_text() {
        for text in [
            "",
            "plain",
            "[1] See also",
            "{\n  int x;\n}\n",
            "{}",
            "{\"quoted\" braces} are prose",
            "{{template}}",
            "[1]\nA footnote",
            "[\"quoted\"] words",
            "\"Who?\"\nshe said",
            "\"Who?\" she said\n\"I.\"\n",
            "BZ is no magic",
        ] {
            assert_eq!(find(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn json_is_found_by_its_first_object() {
        for (text, found, hint) in [
            ("{\"text\":\"one\"}\n{\"text\":\"two\"}\n", "JSON", "--jsonl text "),
            ("\n{ \"id\": \"7\", \"content\": \"words\"}", "JSON", "--jsonl content "),
            ("{\"url\":\"u\",\"text\":\"cut off", "JSON", "--jsonl text "),
            ("{\n  \"text\": \"x\"\n}", "JSON", "--jsonl text "),
            ("[\n {\"text\": \"x\"},\n", "a JSON array", "jq -c"),
            ("\u{feff}{\"text\":\"one\"}\n", "JSON", "--jsonl text "),
            ("\u{feff}[{\"text\":\"one\"}]\n", "a JSON array", "jq -c"),
            ("[\"one\",\"two\"]", "a JSON array", "--jsonl text "),
            ("[\"one\"]\r\n[\"two\"]\n", "a JSON array", "--jsonl text "),
            ("[\n  \"one\",\n", "a JSON array", "--jsonl text "),
            ("[[{\"text\":\"one\"}]]", "a JSON array", "--jsonl text "),
            ("\"one\"\n\"two\"\n", "JSON strings", "--jsonl text "),
        ] {
            let NotText { found: kind, hint: advice, .. } = find(text.as_bytes()).unwrap();
            assert_eq!(kind, found, "{text}");
            assert!(advice.contains(hint), "{text}: {advice}");
        }
        assert_eq!(find_binary(b"{\"text\":\"one\"}"), None);
    }
}
