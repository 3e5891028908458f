//! Recognition of ordinary text by its first bytes.

/// Number of bytes that are examined.
const HEAD_BYTES: usize = 1024;
/// Fewest bytes to decide on: fewer may be text by chance.
const BYTES_MIN: usize = 64;
/// UTF-8's byte order mark.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Returns whether a file that begins with these bytes is text: without control characters, in
/// UTF-8 or mostly in ASCII, as Latin-1 is. In uint16 tokens of text, every few bytes are a control
/// character (the upper half of a small id is 0) or invalid UTF-8.
pub(super) fn is_text(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(HEAD_BYTES)];
    if head.len() < BYTES_MIN {
        return false;
    }
    let is_printable = |byte: &&u8| matches!(byte, b'\t'..=b'\r' | b' '..=b'~');
    let has_control = |byte: &u8| byte.is_ascii_control() && !matches!(byte, b'\t'..=b'\r');
    if head.iter().filter(is_printable).count() >= head.len() / 8 * 7 {
        return !head.iter().any(has_control);
    }
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // The last character may be truncated.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    text.chars().all(|char| !char.is_control() || char.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_any_language_is_text() {
        for words in [
            "\u{201c}In the beginning\u{201d} God created the heaven.\r\n\t",
            "Die Erde war w\u{fc}st und leer. ",
            "\u{8d77}\u{521d}\u{ff0c}\u{795e}\u{5275}\u{9020}\u{5929}\u{5730}\u{3002}",
            "\u{412} \u{43d}\u{430}\u{447}\u{430}\u{43b}\u{435} ",
        ] {
            let text = words.repeat(8);
            assert!(is_text(text.as_bytes()), "{text}");
            assert!(is_text(&[BYTE_ORDER_MARK, text.as_bytes()].concat()), "{text}");
            for cut in 0..4 {
                let long = [&b"aaaa"[..cut], text.repeat(20).as_bytes()].concat();
                assert!(is_text(&long), "{text} {cut}");
            }
        }
    }

    #[test]
    fn tokens_of_text_are_no_text() {
        let text = "In the beginning God created the heaven and the earth. And the earth was \
            without form, and void; and darkness was upon the face of the deep. And the Spirit of \
            God moved upon the face of the waters.";
        let ids = tiktoken_rs::r50k_base_singleton().encode_ordinary(text);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| (*id as u16).to_le_bytes()).collect();
        for start in (0..bytes.len() - BYTES_MIN).step_by(2) {
            assert!(!is_text(&bytes[start..]), "{start}");
        }
        let ids_of_bytes: Vec<u8> = text.bytes().flat_map(|byte| [byte, 0]).collect();
        assert!(!is_text(&ids_of_bytes));
    }
}
