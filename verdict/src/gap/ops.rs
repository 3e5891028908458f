//! Bounds of ops by the matmul rate and the memory rate that were measured in the same run.

use record::{OpRecord, ProfileRecord};

use super::bound::{Bound, BoundBy};

/// Measured rates; the errors are why they cannot be used.
#[derive(Debug)]
pub(super) struct Rates {
    matmul_flops_per_second: Result<f64, String>,
    memory_bytes_per_second: Result<f64, String>,
}

/// Share of the measured matmul rate above which it cannot have been the machine's.
const MATMUL_SHARE_MAX: f64 = 1.05;

/// Share of the measured rate of memory above which it cannot have been the machine's: an op that
/// overwrites what it has read saves a quarter of the triad's traffic, the read before a write.
const MEMORY_SHARE_MAX: f64 = 1.4;

/// Bytes of a call that no cache holds, as in the probe of memory: three arrays of 64 MiB.
const OUTSIDE_OF_CACHES_BYTES: f64 = (3 * (64 << 20)) as f64;

impl Rates {
    /// Takes the rates of a profile. A rate that an op of the same step exceeds was measured while
    /// other load disturbed the probe.
    pub(super) fn of(profile: &ProfileRecord) -> Self {
        let products = profile.ops.iter().map(|op| Work { op, amount: op.flops });
        let passes = profile.ops.iter().filter(|op| {
            op.flops == 0.0 && op.bytes / op.calls.max(1) as f64 >= OUTSIDE_OF_CACHES_BYTES
        });
        let passes = passes.map(|op| Work { op, amount: op.bytes });
        Self {
            matmul_flops_per_second: undisturbed(
                "matmul rate",
                profile.matmul_flops_per_second,
                products,
                MATMUL_SHARE_MAX,
            ),
            memory_bytes_per_second: undisturbed(
                "memory rate",
                profile.memory_bytes_per_second,
                passes,
                MEMORY_SHARE_MAX,
            ),
        }
    }

    /// Returns the least time of an op at these rates. Where moving its bytes would take longer
    /// than the op does, its operands are in caches, and the memory rate is no bound.
    ///
    /// # Errors
    /// The reason why a rate that it needs cannot be used.
    pub(super) fn bound(&self, op: &OpRecord) -> Result<Bound, String> {
        let memory_ms = 1e3 * op.bytes / self.memory_bytes_per_second.clone()?;
        let is_in_caches = memory_ms > op.ms;
        if op.flops == 0.0 {
            let by = if is_in_caches { BoundBy::Caches } else { BoundBy::Memory };
            return Ok(Bound { ms: memory_ms.min(op.ms), by });
        }
        let matmul_ms = 1e3 * op.flops / self.matmul_flops_per_second.clone()?;
        if is_in_caches || matmul_ms >= memory_ms {
            return Ok(Bound { ms: matmul_ms.min(op.ms), by: BoundBy::Matmul });
        }
        Ok(Bound { ms: memory_ms, by: BoundBy::Memory })
    }
}

/// FLOPs or bytes of an op.
struct Work<'a> {
    op: &'a OpRecord,
    amount: f64,
}

fn undisturbed<'a>(
    name: &str,
    rate: Option<f64>,
    all: impl Iterator<Item = Work<'a>>,
    share_max: f64,
) -> Result<f64, String> {
    let rate = rate.filter(|rate| *rate > 0.0 && rate.is_finite());
    let rate = rate.ok_or_else(|| format!("the {name} was not measured"))?;
    let share = |work: &Work<'_>| work.amount / (work.op.ms / 1e3) / rate;
    match all.max_by(|a, b| share(a).total_cmp(&share(b))) {
        Some(fastest) if share(&fastest) > share_max => Err(format!(
            "the probe of the {name} was disturbed: {} ran at {:.0} % of it",
            fastest.op.name,
            100.0 * share(&fastest)
        )),
        _ => Ok(rate),
    }
}
