//! Environment variables that name folders of tiers.

use record::ExitCode;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};
use crate::ranks::Ranks;

/// Folders of tiers from the environment, for tiers that the configuration does not name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Variables {
    pub(crate) nvme: Option<String>,
    pub(crate) shared: Option<String>,
}

impl Variables {
    /// Reads the variables of this process.
    pub fn read() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    pub(crate) fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let model = set("MODEL_CHECKPOINT_NAME");
        let of_model = |folder: String| match &model {
            Some(model) => format!("{}/{model}", folder.trim_end_matches('/')),
            None => folder,
        };
        let folder = |name| set(name).map(of_model);
        Self { nvme: folder("LOCAL_CHECKPOINT_DIR"), shared: folder("SHARED_CHECKPOINT_DIR") }
    }

    /// Returns whether there is a tier of each node.
    pub fn has_nvme(&self) -> bool {
        self.nvme.is_some()
    }

    /// Returns whether a shared tier is named.
    pub fn has_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Agrees on the variables of the run: a launcher may not pass the environment to all ranks.
    /// Rank 0 decides which tiers there are; each rank decides the path of its node's tier, which
    /// is empty where unknown. Collective.
    pub(crate) fn agreed(self, ranks: Ranks<'_>) -> Outcome<Self> {
        let internal = |error| Failure::new(ExitCode::Internal, anyhow::Error::from(error));
        let own = serde_json::to_vec(&self).map_err(internal)?;
        let first = ranks.gather_bytes(&own)?.swap_remove(0);
        let Self { nvme, shared } = serde_json::from_slice(&first).map_err(internal)?;
        Ok(Self { nvme: nvme.map(|_| self.nvme.unwrap_or_default()), shared })
    }
}
