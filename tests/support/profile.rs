//! Rows of the table that `--profile-step` prints.

/// Cells of the row with this name: calls, ms, share of the step, GFLOP, rates.
pub fn profile_row(table: &str, name: &str) -> Vec<String> {
    let line = table.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
    let line = line.unwrap_or_else(|| panic!("no row {name:?} in\n{table}"));
    let line = line.trim_start().trim_start_matches(name).replace(" %", "%");
    line.split_whitespace().map(str::to_owned).collect()
}
