//! Alerts and dashboards: promtool accepts and tests them, and they use metrics that exist.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::examples::top;
use crate::objects::{list, text};

fn read(path: &str) -> String {
    std::fs::read_to_string(top().join(path)).unwrap()
}

/// The spec of the PrometheusRule, which is a rule file of Prometheus.
fn alerts() -> Value {
    let object: Value = serde_saphyr::from_str(&read("k8s/monitoring/alerts.yaml")).unwrap();
    object["spec"].clone()
}

/// The expressions of the dashboard, with values in place of its variables.
fn of_dashboard() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("k8s/monitoring/yardstick.json")).unwrap();
    let panels = list(&dashboard, "/panels").iter();
    let targets = panels.flat_map(|panel| list(panel, "/targets"));
    let queries = targets.map(|target| text(target, "/expr"));
    queries.map(|query| query.replace("$namespace", ".*").replace("$job", ".*")).collect()
}

/// Returns every series that the endpoint of yardstick has, from the documentation, which a test of
/// it compares with the exported ones; and those that the exporter of DCGM is configured to have.
fn exported() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for row in read("docs/metrics.md").lines().filter(|line| line.starts_with("| `yardstick_")) {
        let name = row.split('`').nth(1).unwrap();
        names.insert(name.to_owned());
        if row.contains("| histogram |") {
            names.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
        }
    }
    let counters = read("k8s/monitoring/dcgm-metrics.csv");
    let counters = counters.lines().filter(|line| !line.starts_with('#'));
    names.extend(counters.filter_map(|line| Some(line.split_once(',')?.0.to_owned())));
    names
}

/// The names in an expression that are not exported.
fn unknown(expression: &str) -> Vec<String> {
    let exported = exported();
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics = words.filter(|word| word.starts_with("yardstick_") || word.starts_with("DCGM_"));
    metrics.filter(|name| !exported.contains(*name)).map(str::to_owned).collect()
}

/// Runs promtool in a folder with the alerts, their tests, and the dashboard's expressions.
fn promtool(folder: &Path, arguments: &[&str]) -> Result<(), String> {
    let records = of_dashboard()
        .into_iter()
        .enumerate()
        .map(|(i, expression)| json!({ "record": format!("dashboard:{i}"), "expr": expression }));
    let dashboard = json!({ "groups": [{ "name": "a", "rules": records.collect::<Vec<_>>() }] });
    for (name, rules) in [("alerts.yaml", alerts()), ("dashboard.yaml", dashboard)] {
        std::fs::write(folder.join(name), serde_saphyr::to_string(&rules).unwrap()).unwrap();
    }
    std::fs::write(folder.join("tests.yaml"), read("k8s/monitoring/tests.yaml")).unwrap();
    let mut command = Command::new("promtool");
    let output = command.args(arguments).current_dir(folder).output();
    let output = output.expect("promtool is installed: scripts/setup.sh test");
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told).into_owned();
    if output.status.success() { Ok(()) } else { Err(told) }
}

#[test]
fn promtool_accepts_the_alerts_and_the_expressions_of_the_dashboard() {
    let folder = tempfile::tempdir().unwrap();
    promtool(folder.path(), &["check", "rules", "alerts.yaml", "dashboard.yaml"]).unwrap();
}

#[test]
fn alerts_fire_when_they_should_and_only_then() {
    let folder = tempfile::tempdir().unwrap();
    promtool(folder.path(), &["test", "rules", "tests.yaml"]).unwrap();
}

#[test]
fn every_alert_has_a_test_that_it_fires() {
    let tests: Value = serde_saphyr::from_str(&read("k8s/monitoring/tests.yaml")).unwrap();
    let cases = list(&tests, "/tests").iter().flat_map(|test| list(test, "/alert_rule_test"));
    let firing = cases.filter(|case| !list(case, "/exp_alerts").is_empty());
    let tested: BTreeSet<_> = firing.map(|case| text(case, "/alertname").to_owned()).collect();
    let alerts = alerts();
    let rules = list(&alerts, "/groups").iter().flat_map(|group| list(group, "/rules"));
    let untested = rules.map(|rule| text(rule, "/alert")).filter(|name| !tested.contains(*name));
    assert_eq!(untested.collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn alerts_their_tests_and_the_dashboard_use_metrics_that_exist() {
    let mut expressions = of_dashboard();
    expressions.push(read("k8s/monitoring/alerts.yaml"));
    expressions.push(read("k8s/monitoring/tests.yaml"));
    let unknown: Vec<_> = expressions.iter().flat_map(|text| unknown(text)).collect();
    assert_eq!(unknown, Vec::<String>::new());
}

#[test]
fn a_metric_that_does_not_exist_is_found() {
    assert_eq!(unknown("rate(yardstick_steps[5m]) > 0"), ["yardstick_steps"]);
    assert_eq!(unknown("rate(yardstick_steps_total{rank=\"0\"}[5m]) > 0"), Vec::<String>::new());
    assert_eq!(
        unknown("yardstick_loss_sum + DCGM_FI_DEV_XID"),
        ["yardstick_loss_sum", "DCGM_FI_DEV_XID"]
    );
}
