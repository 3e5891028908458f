//! Evidence of a verdict: the number of runs, the source of their variance, and whether their steps
//! had settled.

use std::fmt;

use serde::Serialize;

use super::design::{Design, Method};
use super::side::{Side, Source};
use super::verdict::Verdict;
use record::text::number_format;

/// Evidence of a verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    /// Source of the variance.
    pub method: Method,
    /// Number of runs of each side.
    pub runs: Counts,
    /// Number of sessions of each side.
    pub sessions: Counts,
    /// Records of runs whose step times had not settled.
    pub not_steady: Vec<String>,
    /// True if steps that had not settled keep the verdict from passing.
    #[serde(skip)]
    is_unsettled: bool,
}

/// Counts of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub base: usize,
    pub new: usize,
}

impl Evidence {
    /// Collects the evidence. In pairs, a run whose steps had not settled is compared with one that
    /// ran just before or after it for as many steps. Elsewhere the mean of such a run says nothing
    /// about its end: this excludes comparisons of single runs, and the new side of sessions.
    pub(super) fn of(design: &Design<'_>, base: &Side, new: &Side) -> Self {
        let unsettled = |side: &Side| -> Vec<String> {
            let is_unsettled = |source: &&Source| {
                source.record.steps.as_ref().is_none_or(|steps| !steps.is_steady)
            };
            let sources = side.sources.iter().filter(is_unsettled);
            sources.map(|source| source.path.display().to_string()).collect()
        };
        let (of_base, of_new) = (unsettled(base), unsettled(new));
        let method = design.method();
        let is_unsettled = match method {
            Method::Pairs => false,
            Method::Sessions => !of_new.is_empty(),
            Method::Assumed => !of_base.is_empty() || !of_new.is_empty(),
        };
        Self {
            method,
            runs: Counts { base: base.sources.len(), new: new.sources.len() },
            sessions: Counts { base: base.sessions().len(), new: new.sessions().len() },
            not_steady: [of_base, of_new].concat(),
            is_unsettled,
        }
    }

    /// Returns the verdict that these runs admit.
    pub(super) fn admitted(&self, verdict: Verdict) -> Verdict {
        if self.is_unsettled && verdict.passes() { Verdict::TooNoisy } else { verdict }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sessions = |count| number_format::count(count, "session");
        match self.method {
            Method::Pairs => formatter.write_str(&number_format::count(self.runs.base, "pair"))?,
            Method::Sessions => {
                let (base, new) = (self.sessions.base, self.sessions.new);
                write!(formatter, "{}, {new} new", sessions(base))?;
            }
            Method::Assumed => formatter.write_str("deviation assumed")?,
        }
        match self.not_steady.len() {
            0 => Ok(()),
            count => write!(formatter, "; {count} of {} not steady", self.runs.total()),
        }
    }
}

impl Counts {
    fn total(self) -> usize {
        self.base + self.new
    }
}
