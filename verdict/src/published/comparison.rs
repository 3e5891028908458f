//! Figures of a run beside published ones, each in the convention of its row.

use std::path::{Path, PathBuf};

use record::{ExitCode, Record};
use serde::Serialize;

use super::PREFIX;
use super::comparable::require_same_work;
use super::conditions::{Condition, conditions, devices};
use super::rows::{Convention, Published, Row};
use crate::compare::{Side, not_comparable};
use crate::error::{Error, Result};

/// A run beside published figures of the same work. There is no verdict.
/// [`Display`](std::fmt::Display) is a page of 80 columns.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PublishedComparison {
    /// Key of the published work.
    pub key: String,
    /// Workload of the run.
    pub workload: String,
    /// Id of the workload.
    pub workload_id: String,
    /// Exit code of `compare`: 0, whatever the ratios are.
    pub exit_code: u8,
    /// Comparison with each source.
    pub rows: Vec<RowComparison>,
}

/// A run beside the figures of one source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RowComparison {
    /// Publisher and place of the figures.
    pub source: String,
    /// Version or date of the source.
    pub version: String,
    /// Inferred figures of the source, and other remarks.
    pub note: Option<String>,
    /// All figures that the source states.
    pub figures: Vec<PublishedFigure>,
    /// Conditions of both, equal or not.
    pub conditions: Vec<Condition>,
}

/// A figure of one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PublishedFigure {
    /// `tokens_per_second`, `model_flops_per_second` or `mfu`.
    pub name: &'static str,
    /// Convention of the figure; `null` for tokens, which need none.
    pub convention: Option<Convention>,
    /// The published figure.
    pub published: f64,
    /// That of this run in the same convention; `null` if it is not known.
    pub run: Option<f64>,
    /// `run` over `published`.
    pub ratio: Option<f64>,
}

impl PublishedComparison {
    /// Compares the run at these paths with published work.
    ///
    /// # Errors
    /// Exit code 2 for an unknown key or several runs, and 12 for other work or a run that has no
    /// result.
    pub fn of(key: &str, paths: &[PathBuf]) -> Result<Self> {
        let published = Published::find(key)?;
        let side = Side::read(paths)?;
        match &side.sources[..] {
            [run] => Self::of_record(&published, &run.record, &run.path),
            [] => Err(not_comparable("RUN: expected a record, found none".to_owned())),
            runs => {
                let found = runs.len();
                Err(Error::Usage(format!("{PREFIX}{key}: expected one run, found {found}")))
            }
        }
    }

    /// Compares the record at a path.
    pub(super) fn of_record(published: &Published, record: &Record, path: &Path) -> Result<Self> {
        require_same_work(record, published).map_err(|text| {
            let (path, key) = (path.display(), &published.key);
            not_comparable(format!("{path} with {PREFIX}{key}: {text}"))
        })?;
        let compared = |row: &Row| RowComparison {
            source: row.source.clone(),
            version: row.version.clone(),
            note: row.note.clone(),
            figures: figures(record, row),
            conditions: conditions(record, published, row),
        };
        Ok(Self {
            key: published.key.clone(),
            workload: record.workload.name.clone(),
            workload_id: record.workload.id.clone(),
            exit_code: ExitCode::Done as u8,
            rows: published.rows.iter().map(compared).collect(),
        })
    }
}

fn figures(record: &Record, row: &Row) -> Vec<PublishedFigure> {
    let figure = |name, convention, published: f64, run: Option<f64>| {
        let run = run.filter(|run| run.is_finite() && *run > 0.0);
        let ratio = run.map(|run| run / published);
        PublishedFigure { name, convention, published, run, ratio }
    };
    let devices = devices(record) as f64;
    let tokens = record.tokens_per_second.map(|rates| rates.step.total / devices);
    let convention = Some(row.convention);
    let mut figures = vec![figure("tokens_per_second", None, row.tokens_per_second, tokens)];
    figures.extend(row.teraflops.map(|teraflops| {
        let run = model_flops_per_second(record, row.convention);
        let of_device = run.map(|rank| rank * record.ranks.len() as f64 / devices);
        figure("model_flops_per_second", convention, 1e12 * teraflops, of_device)
    }));
    figures
        .extend(row.mfu.map(|mfu| figure("mfu", convention, mfu, of_peak(record, row.convention))));
    figures
}

/// FLOP/s of the model on one rank.
fn model_flops_per_second(record: &Record, convention: Convention) -> Option<f64> {
    let rate = record.rank_flops_per_second?;
    match convention {
        Convention::Causal => Some(rate.causal),
        Convention::Full => Some(rate.full),
        Convention::NotStated => None,
    }
}

/// Share of the device's published peak.
fn of_peak(record: &Record, convention: Convention) -> Option<f64> {
    match convention {
        Convention::Causal => record.mfu_causal,
        Convention::Full => record.mfu_full,
        Convention::NotStated => None,
    }
}
