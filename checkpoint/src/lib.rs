//! How state survives: sharded safetensors, chunk digests, a manifest that commits, restore.
//!
//! The crate knows neither models nor networks. The caller hands it named boxes of bytes
//! ([`Part`], [`PartMut`]) and a way to talk to the other ranks ([`Peers`]).
//!
//! ```text
//! <root>/RUN.json                              whose folder this is
//!        EPOCH-0003                            the newest attempt, which fences earlier ones
//!        s000012500-e0003-9f2c61ab/            step, epoch (fences zombies), random attempt
//!          d00/r00000-000.safetensors          header padded to 4096 bytes, then the data
//!              r00000.state.json               what belongs to this rank alone
//!              r00000.idx.json                 boxes, sizes, digests of all of the rank's files
//!          MANIFEST.json                       the commit record, written last
//!        LATEST                                a hint for people; never read
//! ```
//!
//! A checkpoint counts if and only if its manifest carries its own digest. Every JSON file does
//! (see [`Manifest`]), the manifest names the digest of every index, and an index the digest of
//! every byte of its rank: a torn, stale or flipped file is found before its bytes are used.
//!
//! ```
//! use checkpoint::{Alone, Dtype, Identity, Part, PartMut, Save, Silent, Store, TensorBox};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let store = Store::open(folder.path(), &Identity::new("run-1", "6ad31c0f9e21"))?;
//! let tensor = TensorBox::whole("weights", Dtype::F32, &[2, 2]);
//! let state = serde_json::json!({"tokens": 4096});
//! let epoch = store.claim(1, &Alone)?;
//! store.save(
//!     &Save {
//!         step: 10,
//!         epoch,
//!         parts: &[Part { tensor: tensor.clone(), data: &[7; 16] }],
//!         state: &state,
//!         rank_state: &serde_json::Value::Null,
//!         parent: None,
//!         unable: None,
//!     },
//!     &Alone,
//!     &Silent,
//! )?;
//!
//! store.tidy(epoch, 2, &Silent); // rank 0: the newest two stay
//!
//! let mut data = [0; 16];
//! let restored = store.resume(&mut [PartMut { tensor, data: &mut data }], &Alone)?;
//! assert_eq!(restored.map(|r| (r.step, r.state)), Some((10, state)));
//! assert_eq!(data, [7; 16]);
//! # Ok(())
//! # }
//! ```

mod agree;
mod boxes;
mod cut;
mod digest;
mod durable;
mod epoch;
mod error;
mod format;
mod identity;
mod name;
mod peers;
mod point;
mod region;
mod restore;
mod resume;
mod retention;
mod save;
mod store;
mod verify;
mod write;

pub use boxes::{Dtype, Part, PartMut, TensorBox};
pub use cut::{Share, cut};
pub use digest::{Crc64, Digest};
pub use durable::{Published, publish};
pub use error::{Error, RankFailure, Rejected};
pub use format::manifest::{Manifest, RankEntry};
pub use identity::Identity;
pub use peers::{Alone, Peers, PeersError};
pub use point::{Observer, Point, Silent};
pub use resume::Restored;
pub use retention::Tidied;
pub use save::{Save, SaveReport};
pub use store::{Listed, Options, Status, Store, holds_any};
pub use verify::VerifyReport;

pub(crate) use identity::FORMAT;

pub(crate) type Result<T> = std::result::Result<T, Error>;
