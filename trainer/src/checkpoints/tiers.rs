//! Configured tiers of a run: their places, their intervals between checkpoints, and how many
//! checkpoints each keeps.

use std::path::Path;

use checkpoint::tier::Scope;
use record::files::{Filesystem, Medium};
use record::text::is_remote;

use crate::config::Variables;
use crate::config::{CheckpointConfig, TierConfig};
use record::TierRecord;
use record::text::Interval;

/// Tier that a run plans to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Name in the configuration.
    pub name: &'static str,
    /// Scope: of each node, or shared by all.
    pub scope: Scope,
    /// Folder or URL of the run there.
    pub address: String,
    /// Interval between saves.
    pub every: Interval,
    /// Number of checkpoints kept.
    pub keep: usize,
    /// True if each rank's files are copied to another node.
    pub has_partner_copies: bool,
}

/// Returns the tiers of a run, the nearest first; `folder` is the run's own folder for checkpoints.
pub fn planned(
    config: &CheckpointConfig,
    variables: Variables,
    folder: &Path,
    run: &str,
) -> Vec<Planned> {
    let plan = |name, scope, tier: &TierConfig, default: Option<String>| {
        let of_run = |path: String| match path.as_str() {
            "" => path,
            path => format!("{}/{run}", path.trim_end_matches('/')),
        };
        Some(Planned {
            name,
            scope,
            address: tier.path.clone().or(default).map(of_run)?,
            every: tier.every.unwrap_or(config.every),
            keep: tier.keep.unwrap_or(config.keep),
            has_partner_copies: tier.partner,
        })
    };
    let nvme = plan("nvme", Scope::Node, &config.nvme, variables.nvme);
    let shared = plan("shared", Scope::Shared, &config.shared, variables.shared);
    let object = plan("object", Scope::Shared, &config.object, None);
    let shared = shared.unwrap_or_else(|| Planned {
        name: "shared",
        scope: Scope::Shared,
        address: folder.to_string_lossy().into_owned(),
        every: config.shared.every.unwrap_or(config.every),
        keep: config.shared.keep.unwrap_or(config.keep),
        has_partner_copies: false,
    });
    let shared = config.has_shared_tier().then_some(shared);
    nvme.into_iter().chain(shared).chain(object).collect()
}

/// Returns for each tier of a run, the nearest first, whether it is an object store.
pub fn are_objects(config: &CheckpointConfig) -> Vec<bool> {
    planned(config, Variables::read(), Path::new(""), "").iter().map(Planned::is_object).collect()
}

impl Planned {
    /// Returns whether the tier is in an object store, not a folder.
    pub fn is_object(&self) -> bool {
        is_remote(&self.address)
    }

    /// Returns the file system of its folder; `None` for an object store, and if it is unknown.
    fn filesystem(&self) -> Option<Filesystem> {
        (!self.is_object()).then(|| Filesystem::of(Path::new(&self.address)).ok())?
    }

    pub(super) fn record(&self) -> TierRecord {
        let filesystem = self.filesystem().map(|filesystem| filesystem.name.to_string());
        TierRecord {
            name: self.name.to_owned(),
            address: self.address.clone(),
            filesystem,
            has_partner_copies: self.has_partner_copies,
        }
    }
}

/// Returns a warning about the file system of a tier, if it does not suit the tier.
pub fn path_warning(tier: &Planned) -> Option<String> {
    let Planned { name, scope, address, .. } = tier;
    let Filesystem { name: kind, medium } = tier.filesystem()?;
    let warning = match (medium, scope) {
        (Medium::Ephemeral, _) => "does not survive a restart of the machine or its container",
        (Medium::Network, Scope::Node) => "is a network file system, not a disk of this node",
        _ => return None,
    };
    Some(format!("tier {name}: {address} ({kind}) {warning}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned_with(config: &CheckpointConfig) -> Vec<(&'static str, String, Interval)> {
        let planned = planned(config, Variables::default(), Path::new("out/checkpoints"), "run-1");
        planned.into_iter().map(|tier| (tier.name, tier.address, tier.every)).collect()
    }

    #[test]
    fn variables_of_job_files_name_folders_of_a_model() {
        let variables = |model: &'static str| {
            let named = move |name: &str| match name {
                "LOCAL_CHECKPOINT_DIR" => Some("/nvme/".to_owned()),
                "MODEL_CHECKPOINT_NAME" => Some(model.to_owned()),
                _ => None,
            };
            Variables::of(named)
        };
        let nvme = |folder: &str| Variables { nvme: Some(folder.to_owned()), shared: None };
        assert_eq!(variables("llama"), nvme("/nvme/llama"));
        assert_eq!(variables(""), nvme("/nvme/"));
    }

    #[test]
    fn the_run_s_folder_is_the_shared_tier_unless_another_is_named() {
        let every = Interval::Steps(5);
        let mut config = CheckpointConfig { every, ..CheckpointConfig::default() };
        let own = ("shared", "out/checkpoints".to_owned(), every);
        assert_eq!(planned_with(&config), std::slice::from_ref(&own));
        config.nvme.path = Some("/nvme/".to_owned());
        config.object.path = Some("s3://bucket/runs".to_owned());
        config.object.every = Some(Interval::Steps(50));
        let nvme = ("nvme", "/nvme/run-1".to_owned(), every);
        let object = ("object", "s3://bucket/runs/run-1".to_owned(), Interval::Steps(50));
        assert_eq!(planned_with(&config), [nvme.clone(), own, object.clone()]);
        config.shared.path = Some("/lustre".to_owned());
        assert_eq!(planned_with(&config)[1].1, "/lustre/run-1");
        config.shared.path = Some("none".to_owned());
        assert_eq!(planned_with(&config), [nvme, object]);
    }
}
