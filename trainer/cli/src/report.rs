//! `yardstick report`.

use std::path::PathBuf;

use clap::Args;

use super::{judged, print, print_json};
use record::ExitCode;
use trainer::failure::{Failure, Outcome};
use verdict::gap::{Gap, MeasuredLinks};
use verdict::report::{ReportData, html, overview, reports};

/// Summarize a run (speed, time per phase, loss, checkpoints), or several runs in one table.
#[derive(Debug, Args)]
pub(super) struct Report {
    /// Folders of runs, record.json files, or folders of several runs.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Write a self-contained HTML page with charts.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print Markdown, as for a pull request.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Print JSON: an object for one run, or a list for several.
    #[arg(long)]
    json: bool,
    /// Explain the time of the step of `train --profile-step`: what measured rates allow for each
    /// op, and the gap, in at most ten rows, the largest gap first.
    #[arg(long, conflicts_with_all = ["html", "markdown"])]
    gap: bool,
    /// Links between the same ranks, for --gap: the output of `yardstick comm --json`.
    #[arg(long, value_name = "FILE", requires = "gap")]
    comm: Option<PathBuf>,
}

impl Report {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let mut found = Vec::new();
        for run in &self.runs {
            found.extend(reports(run).map_err(|error| Failure::new(ExitCode::Usage, error))?);
        }
        if self.gap {
            return self.explain(&found);
        }
        if let Some(path) = &self.html {
            std::fs::write(path, html(&found)).map_err(|error| {
                let shown = path.display();
                Failure::usage(format!("{shown}: cannot write: {error}"))
            })?;
        }
        match &found[..] {
            [one] if self.markdown => print(one.to_markdown().trim_end()),
            [one] if self.json => print_json(one),
            [one] => print(one),
            several if self.json => print_json(&several),
            several => print(overview(several)),
        }
    }

    /// Prints the gap of one run.
    fn explain(&self, found: &[ReportData]) -> Outcome<ExitCode> {
        let [run] = found else {
            let found = found.len();
            return Err(Failure::usage(format!("--gap: expected one run, found {found}")));
        };
        let links = self.comm.as_deref().map(MeasuredLinks::read).transpose();
        let gap = judged(links.and_then(|links| Gap::of(&run.record, links.as_ref())))?;
        if self.json { print_json(&gap) } else { print(&gap) }
    }
}

#[cfg(test)]
mod tests {
    use models::{Layout, presets};
    use serde_json::json;

    #[test]
    fn the_workload_of_fixtures_is_the_preset() {
        let config = json!(presets::load("smoke").unwrap());
        assert_eq!(record::fixtures::finished().workload.config, config);
    }

    #[test]
    fn parameters_of_a_page_are_those_of_the_model() {
        for name in presets::names() {
            let model = presets::load(name).unwrap().model;
            let shown = verdict::report::parameters(&json!(model));
            assert_eq!(shown, Some(Layout::new(&model).parameters() as u64), "{name}");
        }
    }
}
