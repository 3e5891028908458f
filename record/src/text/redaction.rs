//! Redaction of secrets in URLs: users, passwords and queries, none of which is ever shown.

/// Text in place of a secret.
const MASK: &str = "***";

/// Redacts every URL in a text: `http://user:password@host/path?sig=signature` becomes
/// `http://***@host/path?***`.
pub fn redacted(text: &str) -> String {
    let words = text.split_inclusive(char::is_whitespace);
    words.map(|word| redacted_word(word).unwrap_or_else(|| word.to_owned())).collect()
}

/// Returns whether a URL was redacted, so that nothing can be reached with it.
pub fn is_redacted(url: &str) -> bool {
    url.contains(MASK) && redacted(url) == url
}

/// Redacts a word that is, or contains, a URL; `None` for any other word.
fn redacted_word(word: &str) -> Option<String> {
    let (scheme, rest) = word.split_once("://")?;
    let start = user_end(scheme, rest);
    let user = if start > 0 { format!("{MASK}@") } else { String::new() };
    let rest = &rest[start..];
    let (place, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let space = &rest[rest.trim_end().len()..];
    let query = match query.chars().next() {
        Some(mark) => format!("{mark}{MASK}{space}"),
        None => String::new(),
    };
    Some(format!("{scheme}://{user}{place}{query}"))
}

/// Returns the end of user and password. In URLs of the web that is the last `@`, as a password may
/// have characters that belong elsewhere. In URLs of object stores, names may have that character
/// too.
fn user_end(scheme: &str, rest: &str) -> usize {
    let is_web = scheme.ends_with("http") || scheme.ends_with("https");
    let authority = if is_web { rest } else { rest.split('/').next().unwrap_or_default() };
    authority.rfind('@').map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_user_nor_query_is_shown() {
        for (url, shown) in [
            ("http://user:PASS@host:4318/a", "http://***@host:4318/a"),
            ("https://TOKEN@host", "https://***@host"),
            ("http://user:PA/SS@host", "http://***@host"),
            ("http://user:PA#S?S@host/a", "http://***@host/a"),
            ("s3://KEY:PASS@bucket/a@b", "s3://***@bucket/a@b"),
            ("s3://bucket/a?X-Amz-Signature=PASS", "s3://bucket/a?***"),
            ("az://c/a?sv=1&sig=PASS", "az://c/a?***"),
        ] {
            assert_eq!(redacted(url), shown);
            assert_eq!(redacted(shown), shown, "twice is once");
            assert!(is_redacted(shown) && !is_redacted(url), "{url}");
        }
    }

    #[test]
    fn a_url_inside_of_a_sentence_is_found() {
        let text =
            "error sending request for url (http://u:PASS@h/?sig=PASS)\nand http://u:PASS@h ";
        let shown = "error sending request for url (http://***@h/?***\nand http://***@h ";
        assert_eq!(redacted(text), shown);
    }

    #[test]
    fn what_has_no_secret_stays() {
        for text in ["", "a@b", "/folder/a?b", "http://host:4318", "s3://bucket/a@b", "1 \n 2"] {
            assert_eq!(redacted(text), text);
            assert!(!is_redacted(text));
        }
    }
}
