//! Names and quantities that Kubernetes accepts, and the wording of errors about them.

/// Longest DNS label, and longest value of a Kubernetes label.
pub(super) const LABEL_MAX: usize = 63;
/// Longest DNS subdomain.
const SUBDOMAIN_MAX: usize = 253;

/// Description of what [`is_label`] accepts.
pub(super) const LABEL: &str = "lower-case letters, digits and inner dashes, at most 63 characters";

/// Returns whether a text is at most 63 lower-case letters, digits and inner dashes: RFC 1123.
pub(super) fn is_label(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_end = |c: char| is_inner(c) && c != '-';
    text.len() <= LABEL_MAX
        && text.chars().all(is_inner)
        && text.starts_with(is_end)
        && text.ends_with(is_end)
}

/// Description of what [`is_service`] accepts, except for its length.
pub(super) const SERVICE: &str = "lower-case letters, digits and inner dashes, a letter first";

/// Returns whether a text is a label that starts with a letter: RFC 1035.
pub(super) fn is_service(text: &str) -> bool {
    is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// Description of what [`is_subdomain`] accepts.
pub(super) const SUBDOMAIN: &str =
    "the name of an object: lower-case letters, digits, inner dashes and inner dots";

/// Returns whether a text is labels with dots between them.
pub(super) fn is_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_MAX && text.split('.').all(is_label)
}

/// Description of what [`is_qualified`] accepts.
pub(super) const QUALIFIED: &str = "a name such as domain/name, with the domain in lower case";

/// Returns whether a text is a label key or resource name: `name` or `domain/name`.
pub(super) fn is_qualified(text: &str) -> bool {
    let (domain, name) = match text.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, text),
    };
    domain.is_none_or(is_subdomain) && !name.is_empty() && is_label_value(name)
}

/// Returns whether a text is the resource name of a device plugin: `domain/name`.
pub(super) fn is_resource(text: &str) -> bool {
    text.contains('/') && is_qualified(text)
}

/// Description of what [`is_label_value`] accepts.
pub(super) const LABEL_VALUE: &str =
    "the value of a label: letters, digits, and -, _ or . between them, at most 63 characters";

/// Returns whether a text is the value of a label.
pub(super) fn is_label_value(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    let is_inner = |c: char| is_end(c) || "-_.".contains(c);
    text.is_empty()
        || text.len() <= LABEL_MAX
            && text.chars().all(is_inner)
            && text.starts_with(is_end)
            && text.ends_with(is_end)
}

/// Returns whether a text is the name of a file in a ConfigMap.
pub(super) fn is_file_of_config_map(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=SUBDOMAIN_MAX).contains(&text.len()) && text.chars().all(is_inner) && text != ".."
}

/// Description of what [`is_variable`] accepts.
pub(super) const VARIABLE: &str = "letters, digits and _, no digit first";

/// Returns whether a text is the name of an environment variable.
pub(super) fn is_variable(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(is_inner) && text.starts_with(|c: char| is_inner(c) && !c.is_ascii_digit())
}

/// Suffixes of quantities, such as cores or bytes, and their factors.
const SUFFIXES: [(&str, f64); 16] = [
    ("Ki", 1024.0),
    ("Mi", 1048576.0),
    ("Gi", 1073741824.0),
    ("Ti", 1099511627776.0),
    ("Pi", 1125899906842624.0),
    ("Ei", 1152921504606846976.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
    ("", 1.0),
];

/// Value of a quantity, such as `500m`, `.5`, `129e6` or `64Gi`; `None` if invalid.
///
/// <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>
pub(super) fn quantity(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let end = unsigned.find(|c| !is_number(c)).unwrap_or(unsigned.len());
    let (digits, suffix) = unsigned.split_at(end);
    let number: f64 = digits.parse().ok()?;
    let number = if text.starts_with('-') { -number } else { number };
    let is_suffix = |(known, _): &&(&str, f64)| *known == suffix;
    match SUFFIXES.iter().find(is_suffix) {
        Some((_, factor)) => Some(number * factor),
        None => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            Some(number * 10_f64.powi(exponent))
        }
    }
}

/// Returns whether a text is a quantity above 0.
pub(super) fn is_quantity(text: &str) -> bool {
    quantity(text).is_some_and(|value| value > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_as_in_rfc_1123_and_services_as_in_rfc_1035() {
        for text in ["a", "a-1", "gpt2-124m-worker-1", &"x".repeat(63)] {
            assert!(is_label(text) && is_service(text), "{text}");
        }
        for text in ["", "A", "a_b", "-a", "a-", "a.b", "a b", &"x".repeat(64)] {
            assert!(!is_label(text) && !is_service(text), "{text}");
        }
        assert!(is_label("1a") && !is_service("1a"));
        assert!(is_subdomain("a.b-c.d1") && !is_subdomain("a..b") && !is_subdomain(""));
    }

    #[test]
    fn qualified_names_have_at_most_one_domain() {
        for text in ["rdma/ib", "nvidia.com/gpu", "topology.kubernetes.io/zone", "rack", "a_B.c"] {
            assert!(is_qualified(text), "{text}");
        }
        for text in ["", "/ib", "rdma/", "a/b/c", "Rdma/ib", "rdma/-ib", "rdma/i b"] {
            assert!(!is_qualified(text), "{text}");
        }
    }

    #[test]
    fn quantities_are_those_of_kubernetes() {
        let valid = [
            ("1", 1.0),
            ("500m", 0.5),
            ("1.5", 1.5),
            ("64Gi", 68719476736.0),
            ("2T", 2e12),
            (".5", 0.5),
            ("5.", 5.0),
            ("+1", 1.0),
            ("129e6", 129e6),
            ("12E+2", 1200.0),
            ("5e-1", 0.5),
            ("2E", 2e18),
            ("3Ei", 3458764513820540928.0),
            ("250000u", 0.25),
            ("500000000n", 0.5),
        ];
        for (text, value) in valid {
            let found = quantity(text).unwrap_or_else(|| panic!("{text} is one"));
            assert!((found - value).abs() <= value * 1e-12, "{text}: {found}");
            assert!(is_quantity(text), "{text}");
        }
        let others = [
            "", "0", "0e3", "Gi", "-1", "200q", "64GiB", "64 Gi", "1.2.3", ".", "e3", "1e",
            "1e1.5", "++1", "1e+-2", "1ki", "1K", "1mi", "inf", "NaN", " 1",
        ];
        for text in others {
            assert!(!is_quantity(text), "{text}");
        }
    }

    #[test]
    fn variables_are_as_in_a_shell() {
        assert!(is_variable("NCCL_IB_HCA") && is_variable("_a1"));
        for text in ["", "1A", "A-B", "A=B", "A B"] {
            assert!(!is_variable(text), "{text}");
        }
    }
}
