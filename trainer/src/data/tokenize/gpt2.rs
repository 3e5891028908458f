//! Byte pair encoding of GPT-2 for any text.

use std::ops::Range;

/// Size of a run of white space from which it is encoded separately. GPT-2's regular expression
/// takes a step back for each character of a run that text follows, and gives up after a million.
const LONG_RUN_BYTES: usize = 1 << 10;

/// Returns the GPT-2 tokens of a text.
pub(super) fn encode(text: &str) -> Vec<u32> {
    let tokenizer = tiktoken_rs::r50k_base_singleton();
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(Range { start, end }) = long_run(rest) {
        tokens.extend(tokenizer.encode_ordinary(&rest[..start]));
        tokens.extend(tokenizer.encode_ordinary(&rest[start..end]));
        rest = &rest[end..];
    }
    tokens.extend(tokenizer.encode_ordinary(rest));
    tokens
}

/// Returns the first long run of white space, without its last character where text follows: GPT-2
/// joins that to the text, or gives it a token of its own, and keeps the characters before it
/// together. So the text can be cut at both ends of the range without changing its tokens.
fn long_run(text: &str) -> Option<Range<usize>> {
    let mut run: Option<Range<usize>> = None;
    for (at, character) in text.char_indices() {
        if character.is_whitespace() {
            run = Some(run.map_or(at, |run| run.start)..at);
        } else if let Some(run) = run.take().filter(|run| run.len() >= LONG_RUN_BYTES) {
            return Some(run);
        }
    }
    let start = run.filter(|run| run.len() >= LONG_RUN_BYTES)?.start;
    Some(start..text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_has_the_same_tokens_as_in_one_piece() {
        let tokenizer = tiktoken_rs::r50k_base_singleton();
        for unit in ["\t", " ", "\n", "\r\n", " \t", "\u{a0}", "\u{3000}", "\n   "] {
            for length in [LONG_RUN_BYTES - 1, LONG_RUN_BYTES, LONG_RUN_BYTES + 1, 5000] {
                let run = unit.repeat(length);
                for text in [
                    format!("a{run}b"),
                    format!("a{run} b"),
                    format!("{run}'s 42{run}"),
                    run.clone(),
                    format!("{run}\u{65e5}{run}..."),
                ] {
                    let whole = tokenizer.encode_ordinary(&text);
                    assert!(encode(&text) == whole, "{length} of {unit:?}");
                }
            }
        }
    }

    /// Encodes runs that are too long for the regular expression in one piece.
    #[test]
    fn runs_of_any_length_are_encoded() {
        let count = 1_000_003;
        for unit in ["\t", " ", "\n", "\u{a0}"] {
            let tokens = encode(&format!("a{}b", unit.repeat(count)));
            let tokenizer = tiktoken_rs::r50k_base_singleton();
            let decoded = tokenizer.decode_bytes(&tokens).unwrap();
            assert_eq!(decoded.len(), count * unit.len() + 2, "{unit:?}");
            let short = encode(&format!("a{}b", unit.repeat(count % 1000 + 5000)));
            assert_eq!(tokens[..100], short[..100], "{unit:?}");
        }
        for unit in ["a", "=", "7", "\u{65e5}", "a b"] {
            let tokens = encode(&unit.repeat(count));
            assert!(tokens.len() > count / 100, "{unit:?}");
        }
    }
}
