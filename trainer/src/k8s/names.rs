//! The names and quantities that Kubernetes accepts.

/// Longest DNS label, and longest value of a Kubernetes label.
pub(super) const LABEL_MAX: usize = 63;
/// Longest DNS subdomain.
const SUBDOMAIN_MAX: usize = 253;

/// Whether a text is lower-case letters, digits and inner dashes, at most 63 characters: RFC 1123.
pub(super) fn is_label(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_end = |c: char| is_inner(c) && c != '-';
    text.len() <= LABEL_MAX
        && text.chars().all(is_inner)
        && text.starts_with(is_end)
        && text.ends_with(is_end)
}

/// Whether a text is a label that starts with a letter: RFC 1035.
pub(super) fn is_service(text: &str) -> bool {
    is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// Whether a text is labels with dots between them.
pub(super) fn is_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_MAX && text.split('.').all(is_label)
}

/// Whether a text is the key of a label or the name of a resource: `name` or `domain/name`.
pub(super) fn is_qualified(text: &str) -> bool {
    let (domain, name) = match text.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, text),
    };
    domain.is_none_or(is_subdomain) && !name.is_empty() && is_label_value(name)
}

/// Whether a text is the name of a resource that a device plugin has: `domain/name`.
pub(super) fn is_resource(text: &str) -> bool {
    text.contains('/') && is_qualified(text)
}

/// Whether a text is the value of a label.
pub(super) fn is_label_value(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    let is_inner = |c: char| is_end(c) || "-_.".contains(c);
    text.is_empty()
        || text.len() <= LABEL_MAX
            && text.chars().all(is_inner)
            && text.starts_with(is_end)
            && text.ends_with(is_end)
}

/// Whether a text is the name of a file in a ConfigMap.
pub(super) fn is_file_of_config_map(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=SUBDOMAIN_MAX).contains(&text.len()) && text.chars().all(is_inner) && text != ".."
}

/// Whether a text is the name of an environment variable.
pub(super) fn is_variable(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(is_inner) && text.starts_with(|c: char| is_inner(c) && !c.is_ascii_digit())
}

/// Suffixes of quantities, as of cores or bytes.
const SUFFIXES: [&str; 14] =
    ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "m", "k", "M", "G", "T", "P", "E", ""];

/// Whether a text is a quantity above 0, such as `500m`, `1.5` or `64Gi`.
pub(super) fn is_quantity(text: &str) -> bool {
    let number = SUFFIXES.iter().find_map(|suffix| text.strip_suffix(suffix)).unwrap_or(text);
    number.starts_with(|c: char| c.is_ascii_digit())
        && number.chars().all(|c| c.is_ascii_digit() || c == '.')
        && number.parse().is_ok_and(|number: f64| number > 0.0)
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
    fn quantities_have_a_number_and_at_most_one_unit() {
        for text in ["1", "500m", "1.5", "64Gi", "2T", "0.5"] {
            assert!(is_quantity(text), "{text}");
        }
        for text in ["", "0", "Gi", "-1", "+1", "200q", "64GiB", "64 Gi", "1e3", "1.2.3", ".5"] {
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
