//! Saving and restoring state: sharded safetensors, chunk digests, a manifest that commits.
//!
//! The crate knows neither models nor networks. The caller passes named boxes of bytes
//! ([`Part`], [`PartMut`]) and a way to communicate with the other ranks ([`Peers`]).
//!
//! ```text
//! <root>/RUN.json                              which run the folder belongs to
//!        ATTEMPT-0003                          the newest attempt, which fences earlier ones
//!        s000012500-a0003-9f2c61ab/            step, attempt, a random number
//!          d00/r00000-000.safetensors          header padded to 4096 bytes, then the data
//!              r00000-000.safetensors.upload.json   on an object store, during the upload of this
//!                                              file in parts: lets another process abort it
//!              r00000.idx.json                 boxes, sizes, digests of all of the rank's files
//!          MANIFEST.json                       the commit record, written last
//!          PINNED                              empty; retention keeps this checkpoint
//!          r00000.rejected                     empty; this rank's files were found damaged here
//!        LATEST                                newest checkpoint, for people; never read; not on a
//!                                              tier of node scope
//! ```
//!
//! Disks of nodes may have the files of another node's ranks too, under their names: [`Partner`].
//!
//! [`promotion`] copies committed checkpoints to a farther tier in the background.
//!
//! A checkpoint counts if and only if its manifest carries its own digest. Every JSON file does,
//! the manifest names the digest of every index, and an index the digest of every byte of its rank:
//! a torn, stale or corrupted file is found before its bytes are used.
//!
//! A [`Store`] is the checkpoints on one tier. A run with several, of which some may be disks of
//! nodes, claims its attempt and resumes with [`Tiers`].
//!
//! ```
//! use checkpoint::{
//!     Dtype, Identity, NoFailpoints, Part, PartMut, Save, SingleRank, Store, TensorBox,
//! };
//! use checkpoint::tier::LocalTier;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let tier = Arc::new(LocalTier::new(folder.path()));
//! let store = Store::open(tier, &Identity::new("run-1", "6ad31c0f9e21"))?;
//! let tensor = TensorBox::whole("weights", Dtype::F32, &[2, 2]);
//! let state = serde_json::json!({"tokens": 4096});
//! let claim = store.claim_attempt(1, &SingleRank)?;
//! store.save(
//!     &Save { step: 10, claim, number: 0, state: state.clone(), parent: None },
//!     &[Part { tensor: tensor.clone(), data: &[7; 16] }],
//!     &SingleRank,
//!     &NoFailpoints,
//! )?;
//!
//! store.apply_retention(claim.attempt, 2, &NoFailpoints); // rank 0: keeps the newest two
//!
//! let mut data = [0; 16];
//! let restored = store.resume(&mut [PartMut { tensor, data: &mut data }], &SingleRank)?;
//! assert_eq!(restored.map(|r| (r.step, r.state)), Some((10, state)));
//! assert_eq!(data, [7; 16]);
//! # Ok(())
//! # }
//! ```

mod agreement;
pub mod cadence;
mod error;
mod failpoints;
mod fencing;
mod format;
mod peers;
pub mod promotion;
pub mod remote;
mod restore;
mod retention;
mod save;
mod store;
mod tensor;
pub mod tier;
pub mod tiers;

pub use error::{Error, RankFailure, Rejected};
pub use failpoints::{Failpoint, Failpoints, NoFailpoints};
pub use fencing::Claim;
pub use peers::{Peers, PeersError, SingleRank};
pub use restore::VerifyReport;
pub use retention::{Removal, RemovalReason, RetentionReport};
pub use save::{
    Afterwards, Frozen, Partner, STAGING, Save, SaveReport, Saver, SharedFailpoints, Snapshot,
    Staging, Veto,
};
pub use store::{
    Contents, Description, FileSize, Identity, Listed, Options, Presence, Status, Store, holds_any,
};
pub use tensor::{Dtype, Memory, Part, PartMut, TensorBox};
pub use tier::Scope;
pub use tiers::{
    Member, Preview, PreviewSource, Reads, Restored, SkippedCheckpoint, SourceBytes, Tiers,
    Unusable,
};
