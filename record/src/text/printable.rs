//! Text that is safe to print on a terminal, whatever a file or another host has put into it.

use std::borrow::Cow;

/// Escapes the control characters of a text, except line breaks and tabs: they could move the
/// cursor, change the clipboard, or hide what follows. Also escapes characters that change the
/// direction of writing.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let escape = |character: char| {
        let is_escaped = is_unprintable(character);
        let (escaped, plain) = (character.escape_unicode(), character);
        let escaped = is_escaped.then_some(escaped).into_iter().flatten();
        escaped.chain((!is_escaped).then_some(plain))
    };
    Cow::Owned(text.chars().flat_map(escape).collect())
}

fn is_unprintable(character: char) -> bool {
    let is_direction = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    is_direction || character.is_control() && !matches!(character, '\n' | '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        for (text, shown) in [
            ("\u{1b}[2Jhost", "\\u{1b}[2Jhost"),
            ("\u{1b}]52;c;eA==\u{7}", "\\u{1b}]52;c;eA==\\u{7}"),
            ("a\rb\u{8}c\u{7f}", "a\\u{d}b\\u{8}c\\u{7f}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{202e}txt.exe\u{2066}", "\\u{202e}txt.exe\\u{2066}"),
            ("\0", "\\u{0}"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }

    #[test]
    fn text_stays() {
        for text in ["", "a\tb\nc", "gr\u{f6}\u{df}er \u{65e5}\u{672c} \u{2500}", "\\u{1b}"] {
            assert_eq!(printable(text), text);
        }
    }
}
