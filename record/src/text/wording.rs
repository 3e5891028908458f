//! Translation of the messages of serde and clap about a value, from Rust's words into the user's.

/// Rewrites the message of a value of the wrong type or out of its range, or of an unknown or
/// missing key.
pub fn in_user_words(message: &str) -> String {
    let typed =
        ["invalid type: ", "invalid value: "].iter().find_map(|start| message.strip_prefix(start));
    if let Some((found, expected)) = typed.and_then(|typed| typed.rsplit_once(", expected ")) {
        // The location that serde_json appends.
        let (expected, location) =
            expected.find(" at line ").map_or((expected, ""), |at| expected.split_at(at));
        return format!(
            "expected {}, found {}{location}",
            expected_words(expected),
            found_words(found)
        );
    }
    for (theirs, ours) in [
        ("unknown field ", "unknown key "),
        ("missing field ", "missing key "),
        ("duplicate field ", "duplicate key "),
        ("unknown variant ", "unknown value "),
        ("invalid digit found in string", "expected a whole number"),
        ("cannot parse integer from empty string", "expected a whole number"),
        ("number too large to fit in target type", "expected a smaller number"),
        ("invalid float literal", "expected a number"),
        ("cannot parse float from empty string", "expected a number"),
        ("invalid socket address syntax", "expected an address such as 0.0.0.0:9402"),
    ] {
        if let Some(rest) = message.strip_prefix(theirs) {
            return format!("{ours}{rest}");
        }
    }
    let range = message.split_once(" is not in ").and_then(|(_, range)| range_words(range));
    range.unwrap_or_else(|| message.to_owned())
}

fn expected_words(expected: &str) -> &str {
    match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0 on",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "string" | "string only" | "a borrowed string" => "text",
        "path string" => "a path",
        "a sequence" => "a list",
        "a map" => "a table",
        "string or map" | "string or table" => "text or a table",
        _ if expected.starts_with("struct ") => "a table",
        _ => expected,
    }
}

fn found_words(found: &str) -> String {
    match found {
        "sequence" => return "a list".to_owned(),
        "map" => return "a table".to_owned(),
        "null" | "unit value" => return "nothing".to_owned(),
        "unit variant" => return "a value of another type".to_owned(),
        _ => {}
    }
    for kind in ["boolean ", "integer ", "floating point ", "character "] {
        if let Some(value) = found.strip_prefix(kind) {
            return value.to_owned();
        }
    }
    match found.strip_prefix("string ") {
        Some(text) if is_large_number(text.trim_matches('"')) => {
            format!("{}, which is too large", text.trim_matches('"'))
        }
        Some(text) => format!("the text {text}"),
        None => found.to_owned(),
    }
}

/// Returns whether a text is a whole number that TOML takes for text because it has too many
/// digits.
fn is_large_number(text: &str) -> bool {
    let digits = text.trim_start_matches('-');
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number && text.parse::<i64>().is_err()
}

/// Rewrites the range in clap's message about a flag's number that is not in it.
fn range_words(range: &str) -> Option<String> {
    let (least, most) = range.split_once("..")?;
    let most = most.trim_start_matches('=');
    let is_type_max = most.parse().is_ok_and(|most: u64| most >= u32::MAX.into());
    let end = if is_type_max { "on".to_owned() } else { format!("to {most}") };
    Some(format!("expected a whole number from {least} {end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_type_of_rust_is_named() {
        for (theirs, ours) in [
            (
                "invalid type: string \"two\", expected usize",
                "a whole number from 0 on, found the text \"two\"",
            ),
            (
                "invalid value: integer `-1`, expected u32",
                "a whole number from 0 to 4294967295, found `-1`",
            ),
            (
                "invalid type: floating point `1.5`, expected usize",
                "a whole number from 0 on, found `1.5`",
            ),
            ("invalid type: boolean `true`, expected f64", "a number, found `true`"),
            ("invalid type: integer `5`, expected a sequence", "a list, found `5`"),
            ("invalid type: sequence, expected struct TierConfig", "a table, found a list"),
            ("invalid type: map, expected a string", "text, found a table"),
            (
                "invalid type: string \"a, expected b\", expected a boolean",
                "true or false, found the text \"a, expected b\"",
            ),
            (
                "invalid type: map, expected a sequence at line 1 column 2",
                "a list, found a table at line 1 column 2",
            ),
            (
                "invalid type: unit variant, expected string only",
                "text, found a value of another type",
            ),
            (
                "invalid type: string \"99999999999999999999\", expected usize",
                "a whole number from 0 on, found 99999999999999999999, which is too large",
            ),
            ("invalid type: null, expected path string", "a path, found nothing"),
        ] {
            assert_eq!(in_user_words(theirs), format!("expected {ours}"));
        }
        assert_eq!(
            in_user_words("unknown field `a`, expected `b`"),
            "unknown key `a`, expected `b`"
        );
        assert_eq!(in_user_words("missing field `a`"), "missing key `a`");
        assert_eq!(in_user_words("unclosed table"), "unclosed table");
    }

    #[test]
    fn ranges_are_those_of_people() {
        for (theirs, ours) in [
            ("1 is not in 2..18446744073709551615", "expected a whole number from 2 on"),
            ("1 is not in 3..=65535", "expected a whole number from 3 to 65535"),
            ("invalid digit found in string", "expected a whole number"),
            ("expected a duration such as 90s", "expected a duration such as 90s"),
        ] {
            assert_eq!(in_user_words(theirs), ours);
        }
    }
}
