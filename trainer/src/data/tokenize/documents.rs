//! Documents of text files and JSON lines, read in pieces of bounded size.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use serde_json::{Map, Value};

use super::not_text;
use crate::data::error::DataError;
use crate::data::text_head::BYTE_ORDER_MARK;
use record::files::IoError;
use record::text::in_user_words;

/// Text read at a time; a piece is at most this plus the rest of a line.
const READ_BYTES: usize = 1 << 20;

/// Division of inputs into documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputFormat {
    /// Plain text: each file is one document. A file that looks like something else is refused.
    Text,
    /// Any bytes as text: each file is one document, whatever it looks like.
    AnyBytes,
    /// JSON lines: each line is an object with one document.
    Jsonl {
        /// Field that holds the text.
        field: String,
    },
}

/// Part of a document that can be tokenized on its own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) text: Vec<u8>,
    /// True if it is the last piece of its document.
    pub(super) ends_document: bool,
    /// Index of the input file.
    pub(super) input: usize,
    pub(super) position: Position,
}

/// Position of a piece in its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    /// Offset of its first byte in a text file.
    Byte(u64),
    /// Number of the line of JSON lines, from 1.
    Line(u64),
}

impl Position {
    /// Returns the location of a byte of the piece, for messages.
    pub(super) fn location_of_byte(self, index: usize) -> String {
        match self {
            Self::Byte(start) => format!("byte {}", start + index as u64),
            Self::Line(number) => format!("line {number}"),
        }
    }
}

/// Receives pieces in the order of the text.
pub(super) type Take<'a> = dyn FnMut(Piece) -> Result<(), DataError> + 'a;

/// Reads one input to its end; documents without text are skipped.
///
/// # Errors
/// The file cannot be read, a line does not match `format`, or `take` fails.
pub(super) fn read(
    path: &Path,
    input: usize,
    format: &InputFormat,
    take: &mut Take<'_>,
) -> Result<(), DataError> {
    let mut file = File::open(path).map_err(IoError::at(path, "open the text"))?;
    let mut head = Vec::new(); // read once: the input may be a pipe
    let read = (&mut file).take(READ_BYTES as u64).read_to_end(&mut head);
    read.map_err(IoError::at(path, "read the text"))?;
    let found = match format {
        InputFormat::Text => not_text::find(&head),
        InputFormat::AnyBytes => None,
        InputFormat::Jsonl { .. } => not_text::find_binary(&head),
    };
    if let Some(found) = found {
        return Err(found.error(path));
    }
    if matches!(format, InputFormat::Jsonl { .. }) && head.starts_with(BYTE_ORDER_MARK) {
        head.drain(..BYTE_ORDER_MARK.len());
    }
    let whole = head.chain(file);
    match format {
        InputFormat::Text | InputFormat::AnyBytes => read_text(whole, path, input, take),
        InputFormat::Jsonl { field } => read_jsonl(whole, path, input, field, take),
    }
}

/// Reads a text file, which is one document.
fn read_text(
    mut file: impl Read,
    path: &Path,
    input: usize,
    take: &mut Take<'_>,
) -> Result<(), DataError> {
    let mut pending = Vec::new();
    let mut searched = 0;
    let mut start = 0_u64;
    loop {
        let read = (&mut file).take(READ_BYTES as u64).read_to_end(&mut pending);
        if read.map_err(IoError::at(path, "read the text"))? == 0 {
            break;
        }
        if let Some(cut) = last_boundary(&pending, searched) {
            let rest = pending.split_off(cut);
            let text = std::mem::replace(&mut pending, rest);
            let bytes = text.len() as u64;
            take(Piece { text, ends_document: false, input, position: Position::Byte(start) })?;
            start += bytes;
        }
        searched = pending.len().saturating_sub(4); // the last character may be incomplete
    }
    if pending.is_empty() {
        return Ok(()); // only an empty file: after a cut at least the newline is left
    }
    take(Piece { text: pending, ends_document: true, input, position: Position::Byte(start) })
}

/// Returns the last position at or after `from` where text can be cut without changing its GPT-2
/// tokens: before a newline that is followed by something other than white space.
///
/// GPT-2's pattern gives the last character of a run of white space a token of its own when text
/// follows, unless it is a space, and keeps the rest of the run together; a run at the end of the
/// text is kept together too. So both parts are split into the same tokens as the whole.
fn last_boundary(text: &[u8], from: usize) -> Option<usize> {
    let is_boundary = |at: &usize| {
        let next = &text[at + 1..text.len().min(at + 5)];
        let next = next.utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next());
        text[*at] == b'\n' && next.is_some_and(|next| !next.is_whitespace())
    };
    (from.max(1)..text.len()).rev().find(is_boundary)
}

/// Reads JSON lines, each an object with one document.
fn read_jsonl(
    file: impl Read,
    path: &Path,
    input: usize,
    field: &str,
    take: &mut Take<'_>,
) -> Result<(), DataError> {
    let mut reader = BufReader::with_capacity(READ_BYTES, file);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = reader.read_until(b'\n', &mut line);
        if read.map_err(IoError::at(path, "read the text"))? == 0 {
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let text = text_of(&line, field).map_err(|mismatch| DataError::BadText {
            path: path.to_owned(),
            location: format!("line {number}"),
            expected: mismatch.expected,
            found: mismatch.found,
        })?;
        if !text.is_empty() {
            let position = Position::Line(number);
            take(Piece { text: text.into(), ends_document: true, input, position })?;
        }
    }
    Ok(())
}

/// Difference between a JSON line and the expected format.
struct Mismatch {
    expected: String,
    found: String,
}

/// Returns the document of one JSON line.
fn text_of(line: &[u8], field: &str) -> Result<String, Mismatch> {
    let mut object: Map<String, Value> = serde_json::from_slice(line).map_err(|error| {
        let words = in_user_words(&error.to_string());
        let found = words.rsplit_once(", found ").map_or(&*words, |(_, found)| found).to_owned();
        Mismatch { expected: "a JSON object".to_owned(), found }
    })?;
    match object.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => {
            let expected = format!("text in the field \"{field}\"");
            Err(Mismatch { expected, found: kind(&other).to_owned() })
        }
        None => {
            let names: Vec<_> = object.keys().map(String::as_str).collect();
            let found = format!("only {}", names.join(", "));
            Err(Mismatch { expected: format!("a field \"{field}\""), found })
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_before_a_newline_that_text_follows() {
        let cut = |text: &str| last_boundary(text.as_bytes(), 0);
        assert_eq!(cut("one\ntwo\nthree"), Some(7));
        assert_eq!(cut("one\n\n\ntwo"), Some(5));
        assert_eq!(cut("one\ntwo\n"), Some(3), "nothing follows the last newline");
        assert_eq!(cut("one\n two"), None, "a space belongs to the word after it");
        assert_eq!(cut("one\n\u{a0}two"), None, "a no-break space is white space");
        assert_eq!(cut("one\n\u{3042}"), Some(3), "kana is not");
        assert_eq!(
            last_boundary(b"one\n\xe3\x81", 0),
            None,
            "an incomplete character may be white space"
        );
        assert_eq!(cut("\none"), None, "a piece is never empty");
        assert_eq!(last_boundary(b"one\ntwo", 4), None);
    }

    #[test]
    fn cutting_text_does_not_change_its_tokens() {
        let separators =
            ["\n", "\n\n", " \n", "\n ", "\n  ", "\r\n", "\n\u{a0}", "\t\n\n\t", "\n\n\n"];
        let words = ["word", "it's", "42", "...", "caf\u{e9}", "\u{65e5}\u{672c}", "'s"];
        let parts = (0..).map(|at| [words[at % 7], separators[at % 9]].concat());
        let text: String = parts.take(63).collect();
        let encode = |text: &[u8]| {
            let text = std::str::from_utf8(text).unwrap();
            tiktoken_rs::r50k_base_singleton().encode_ordinary(text)
        };
        let whole = encode(text.as_bytes());
        let mut cuts = 0;
        for end in 1..=text.len() {
            let Some(cut) = last_boundary(&text.as_bytes()[..end], end.saturating_sub(6)) else {
                continue;
            };
            let (head, tail) = text.as_bytes().split_at(cut);
            assert_eq!([encode(head), encode(tail)].concat(), whole, "cut at byte {cut}");
            cuts += 1;
        }
        assert!(cuts > 35, "only {cuts} cuts");
    }
}
