//! Other differences between two sides: identity, environment, and settings outside of the
//! workload.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Value, json};

use super::side::Side;
use record::Record;
use record::hardware::HardwareSummary;

/// A property with different values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Path of the property in the record.
    pub name: String,
    /// Values on the base's side.
    pub base: Vec<String>,
    /// Values on the other side.
    pub new: Vec<String>,
}

/// Lists the properties that differ between the sides.
pub(super) fn differences(base: &Side, new: &Side) -> Vec<Difference> {
    let (base, mut new) = (properties(base), properties(new));
    let mut found = Vec::new();
    for (name, base) in base {
        let new = new.remove(&name).unwrap_or_default();
        if base != new {
            found.push(Difference { name, base: sorted(base), new: sorted(new) });
        }
    }
    let only_new = new.into_iter();
    found.extend(only_new.map(|(name, new)| Difference { name, base: vec![], new: sorted(new) }));
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

type Properties = BTreeMap<String, BTreeSet<String>>;

fn sorted(values: BTreeSet<String>) -> Vec<String> {
    values.into_iter().collect()
}

fn properties(side: &Side) -> Properties {
    let mut properties = Properties::new();
    for record in side.records() {
        flatten("environment", &json!(record.environment), &mut properties);
        flatten("run", &record.run, &mut properties);
        flatten("job", &json!(record.job), &mut properties);
        let Record { collectives, tiers, tuned_products, .. } = record;
        let algorithms = tuned_products.as_ref().map(|products| &products.digest);
        flatten("tuned_products.digest", &json!(algorithms), &mut properties);
        let libraries = collectives.iter().filter_map(|collectives| collectives.library.as_ref());
        for library in libraries {
            flatten("collectives.library", &json!(library), &mut properties);
        }
        // Largest group of nodes, if the nodes of a job differ.
        if let Some(group) = record.nodes.first() {
            flatten("node", &json!(group.identity), &mut properties);
        }
        for tier in tiers {
            let name = format!("tiers.{}.filesystem", tier.name);
            flatten(&name, &json!(tier.filesystem), &mut properties);
        }
        let planned = record.ranks.iter().map(|rank| rank.planned_bytes).max();
        flatten("planned_bytes of a rank", &json!(planned), &mut properties);
        flatten(
            "injected",
            &json!(record.injected().collect::<Vec<_>>().join(" ")),
            &mut properties,
        );
        for rank in &record.ranks {
            let name = format!("ranks.{}", rank.rank);
            flatten(&format!("{name}.host"), &json!(rank.host), &mut properties);
            flatten(&format!("{name}.threads"), &json!(rank.threads), &mut properties);
            flatten(&format!("{name}.matmul_kernel"), &json!(rank.matmul_kernel), &mut properties);
            flatten(&format!("{name}.device"), &json!(rank.device), &mut properties);
            if let Some(gpu) = &rank.gpu {
                flatten(&format!("{name}.gpu"), &state(gpu), &mut properties);
            }
        }
    }
    properties
}

/// Returns the alarming readings of a GPU in a run, `null` for those that it does not report, and
/// its power cap, if it has one.
fn state(gpu: &HardwareSummary) -> Value {
    let has_had =
        |counter: &str| gpu.grown(counter).map(|total| if total > 0.0 { "some" } else { "none" });
    let held_down = gpu.held_down().map(|reasons| match reasons.join(", ") {
        none if none.is_empty() => "no".to_owned(),
        reasons => reasons,
    });
    json!({
        "clocks_held_down": held_down,
        "power_cap": gpu.power_cap().map(|cap| cap.to_string()),
        "xid_errors": has_had("xid_errors"),
        "uncorrected_ecc_errors": has_had("ecc_errors.uncorrected"),
    })
}

/// Collects the leaves of a value, by their paths.
fn flatten(path: &str, value: &Value, into: &mut Properties) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                flatten(&format!("{path}.{key}"), value, into);
            }
        }
        Value::String(text) => drop(into.entry(path.to_owned()).or_default().insert(text.clone())),
        value => drop(into.entry(path.to_owned()).or_default().insert(value.to_string())),
    }
}
