//! Links between ranks as `yardstick comm --json` measured them: latency and time per byte of each
//! operation.

use std::path::{Path, PathBuf};

use record::Record;
use record::files::regular_file::read_named_text;
use record::limits::RECORD_BYTES_MAX;
use record::text::number_format::count;
use serde::Deserialize;

use crate::error::{self, Error};

/// Measurements of `yardstick comm`.
#[derive(Debug, Clone, Deserialize)]
pub struct MeasuredLinks {
    hosts: Vec<String>,
    device: String,
    backend: String,
    rows: Vec<Measured>,
    /// File of the measurements.
    #[serde(skip)]
    path: PathBuf,
}

/// One operation on buffers of one size.
#[derive(Debug, Clone, Deserialize)]
struct Measured {
    operation: String,
    bytes: u64,
    in_place: Times,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Times {
    time_us: f64,
}

/// Time of an operation as a line over the size of the buffer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fit {
    pub(super) latency_ms: f64,
    /// Milliseconds per byte of the buffer: the bus factor of nccl-tests over the bus bandwidth.
    pub(super) ms_per_byte: f64,
}

impl MeasuredLinks {
    /// Reads the output of `yardstick comm --json`.
    ///
    /// # Errors
    /// Exit code 2 for a file that cannot be read or is something else.
    pub fn read(path: &Path) -> error::Result<Self> {
        let refused = |text: String| Error::Usage(format!("--comm {}: {text}", path.display()));
        let text = read_named_text(path, RECORD_BYTES_MAX)
            .map_err(|error| refused(error.source.to_string()))?;
        let links: Self = serde_json::from_str(&text).map_err(|error| {
            refused(format!("expected the output of `yardstick comm --json`: {error}"))
        })?;
        Ok(Self { path: path.to_owned(), ..links })
    }

    /// Requires the hosts of a record's ranks in the same order, the same backend, and buffers in
    /// the memory of the same kind of device.
    ///
    /// # Errors
    /// The difference in words.
    pub(super) fn require_ranks_of(&self, record: &Record) -> Result<(), String> {
        let path = self.path.display();
        let hosts: Vec<&str> = record.ranks.iter().map(|rank| rank.host.as_str()).collect();
        if self.hosts != hosts {
            return Err(format!(
                "{path} was measured between ranks on {}, and the run had ranks on {}",
                self.hosts.join(", "),
                hosts.join(", ")
            ));
        }
        let backend = record.collectives.as_ref().map_or("none", |it| it.backend.as_str());
        let is_on_gpu = record.ranks.iter().any(|rank| rank.device.is_some());
        let device = if is_on_gpu { "cuda" } else { "cpu" };
        let Self { backend: measured, device: buffers, .. } = self;
        if measured != backend || buffers != device {
            return Err(format!(
                "{path} was measured by {measured} on {buffers}, and the run communicated by \
                 {backend} on {device}"
            ));
        }
        Ok(())
    }

    /// Fits t = latency + bytes x factor / bandwidth to the times of an operation by least squares
    /// of relative errors, with a latency that is not negative.
    ///
    /// # Errors
    /// The reason why there is no such line.
    pub(super) fn fit(&self, operation: &str) -> Result<Fit, String> {
        let path = self.path.display();
        let points: Vec<Point> = self
            .rows
            .iter()
            .filter(|row| row.operation == operation && row.in_place.time_us > 0.0)
            .map(|row| Point { bytes: row.bytes as f64, ms: row.in_place.time_us / 1e3 })
            .collect();
        if points.len() < SIZES_MIN {
            let sizes = count(points.len(), "size");
            return Err(format!("{path} has {sizes} of {operation}, expected {SIZES_MIN} or more"));
        }
        let fit = line(&points);
        if fit.ms_per_byte > 0.0 && fit.ms_per_byte.is_finite() {
            return Ok(fit);
        }
        Err(format!("{path}: times of {operation} do not grow with the size"))
    }
}

/// Least number of sizes that a line is fitted to.
const SIZES_MIN: usize = 2;

struct Point {
    bytes: f64,
    ms: f64,
}

/// Weighted least squares: each error counts relative to its time, as sizes span orders of
/// magnitude.
fn line(points: &[Point]) -> Fit {
    let sum = |of: &dyn Fn(&Point) -> f64| -> f64 {
        points.iter().map(|point| of(point) / (point.ms * point.ms)).sum()
    };
    let weight = sum(&|_| 1.0);
    let [x, y] = [sum(&|point| point.bytes), sum(&|point| point.ms)];
    let [xx, xy] = [sum(&|point| point.bytes.powi(2)), sum(&|point| point.bytes * point.ms)];
    let ms_per_byte = (weight * xy - x * y) / (weight * xx - x * x);
    let latency_ms = (y - ms_per_byte * x) / weight;
    if latency_ms >= 0.0 {
        Fit { latency_ms, ms_per_byte }
    } else {
        Fit { latency_ms: 0.0, ms_per_byte: xy / xx }
    }
}
