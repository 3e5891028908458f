//! Checks that two sides can be compared at all. Missing values never make a pass.

use super::comparison::Settings;
use super::metric::{Metric, is_known, metrics};
use super::side::{Side, Source};
use crate::error::{Error, Result};
use record::Unusable;

/// Requires records of complete runs of one workload and world, which have all gated metrics, and
/// no run on both sides.
///
/// # Errors
/// Exit code 12 when they cannot be compared, and 2 for wrong gates.
pub(super) fn require_comparable(base: &Side, new: &Side, settings: &Settings) -> Result<()> {
    if base.sources.is_empty() {
        return Err(not_comparable("BASE: expected a record, found none".to_owned()));
    }
    let sources: Vec<&Source> = base.sources.iter().chain(&new.sources).collect();
    require_alike(&sources, settings)?;
    let is_in_base = |new: &&Source| base.sources.iter().any(|it| it.is_of_same_run(&new.record));
    match new.sources.iter().find(is_in_base) {
        None if new.sources.is_empty() => require_side(new, settings),
        None => Ok(()),
        Some(both) => {
            let path = both.path.display();
            Err(not_comparable(format!("{path}: expected two runs, found one on both sides")))
        }
    }
}

/// Requires these properties of one side, if there is nothing to compare it with.
///
/// # Errors
/// Those of `require_comparable`.
pub fn require_side(new: &Side, settings: &Settings) -> Result<()> {
    require_alike(&new.sources.iter().collect::<Vec<_>>(), settings)
}

fn require_alike(sources: &[&Source], settings: &Settings) -> Result<()> {
    let Some(first) = sources.first() else {
        return Err(not_comparable("NEW: expected a record, found none".to_owned()));
    };
    let known = metrics(sources.iter().map(|source| &source.record));
    let gated = gated(&known, settings)?;
    for source in sources {
        require_usable(source, settings)?;
        require_same(source, first, settings)?;
        gated.iter().try_for_each(|metric| require_value(source, metric))?;
    }
    Ok(())
}

fn gated<'known>(known: &'known [Metric], settings: &Settings) -> Result<Vec<&'known Metric>> {
    let names: Vec<&str> = settings.gates.iter().map(|gate| gate.metric.as_str()).collect();
    let repeated = (1..names.len()).find(|&index| names[..index].contains(&names[index]));
    if let Some(index) = repeated {
        let name = names[index];
        return Err(Error::Usage(format!("--gate {name}: expected each metric once")));
    }
    names.into_iter().map(|name| find(known, name)).collect()
}

/// Error of sides that cannot be compared.
pub(crate) fn not_comparable(text: String) -> Error {
    Error::NotComparable(format!("not comparable: {text}"))
}

fn find<'known>(known: &'known [Metric], name: &str) -> Result<&'known Metric> {
    known.iter().find(|metric| metric.name == name).ok_or_else(|| {
        if is_known(name) {
            return not_comparable(format!("no record has the gated {name}"));
        }
        let names: Vec<_> = known.iter().map(|metric| metric.name.as_str()).collect();
        Error::Usage(format!("--gate {name}: expected one of {}", names.join(", ")))
    })
}

fn require_usable(source: &Source, settings: &Settings) -> Result<()> {
    match source.record.unusable() {
        None => Ok(()),
        Some(Unusable::Injected(_)) if settings.allow_injected => Ok(()),
        Some(unusable) => {
            let hint = match unusable {
                Unusable::Injected(_) => "\n  hint: --allow-injected compares drills",
                Unusable::FewSteps(_) => "\n  hint: more --steps",
                _ => "",
            };
            Err(not_comparable(format!("{}: {unusable}{hint}", source.path.display())))
        }
    }
}

fn require_same(source: &Source, first: &Source, settings: &Settings) -> Result<()> {
    let (path, first_path) = (source.path.display(), first.path.display());
    let (record, first) = (&source.record, &first.record);
    if record.workload.id != first.workload.id {
        return Err(not_comparable(format!(
            "{path}: computed {} ({}), and {first_path} {} ({}): only runs of the same workload \
             can be compared",
            record.workload.name, record.workload.id, first.workload.name, first.workload.id
        )));
    }
    if record.ranks.len() != first.ranks.len() && !settings.per_rank {
        return Err(not_comparable(format!(
            "{path}: {} ranks, and {first_path} {}\n  hint: --per-rank compares rates per rank",
            record.ranks.len(),
            first.ranks.len()
        )));
    }
    Ok(())
}

/// Requires a gated metric of a record: a record that lacks it does not count as unchanged.
fn require_value(source: &Source, metric: &Metric) -> Result<()> {
    if metric.usable(&source.record).is_some() {
        return Ok(());
    }
    let found = metric.value(&source.record).map_or("none".to_owned(), |value| value.to_string());
    let (path, name) = (source.path.display(), &metric.name);
    Err(not_comparable(format!(
        "{path}: expected a value of {name}, which is gated, found {found}"
    )))
}
