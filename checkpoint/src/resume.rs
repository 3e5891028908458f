//! Getting back: all ranks restore the same checkpoint, the newest that is usable on all of them.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::agree::{Objection, agree};
use crate::format::manifest::{MANIFEST, Manifest, REJECTED};
use crate::name::Name;
use crate::restore::{Opened, patiently, read_text};
use crate::store::is_committed;
use crate::{Error, PartMut, Peers, RankFailure, Rejected, Result, Status, Store, durable};

/// A checkpoint that all ranks have restored.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Restored {
    /// Name of its folder.
    pub checkpoint: String,
    /// Steps done.
    pub step: u64,
    /// The run's attempt that wrote it.
    pub epoch: u64,
    /// State that does not depend on the world.
    pub state: Value,
    /// This rank's own state; `None` when another number of ranks saved it.
    pub rank_state: Option<Value>,
    /// Its commit record.
    pub manifest: Manifest,
    /// Newer checkpoints that could not be used, newest first: worth a warning each.
    pub rejected: Vec<Rejected>,
    /// Bytes of shards that this rank read.
    pub bytes_read: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// An outcome that is the same on all ranks.
type Attempt<T> = std::result::Result<T, Objection>;

impl Store {
    /// Restores the newest committed checkpoint into `parts`, verified on all ranks; goes back to
    /// older ones past any that is damaged. `None` when nothing was ever committed.
    ///
    /// Those that it went past are [`Status::Rejected`](crate::Status::Rejected) afterwards, so
    /// that retention does not take them for good ones; where none is usable all stay as they are.
    ///
    /// Collective; the world may differ from the one that saved. On an error the content of
    /// `parts` is unspecified. Call [`Store::claim`] before.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] when there are committed ones and all are damaged or rejected.
    /// [`Error::Uncovered`], [`Error::Mismatch`] or [`Error::UnknownFormat`] when the newest one
    /// is not for this program: going back would hide that. [`Error::RestoreFailed`] when that
    /// is so on another rank only. [`Error::Io`] when the file system refuses for a reason that
    /// may pass (no permission, too many open files, a server that is away): start again.
    /// [`Error::Peers`] when a rank is lost.
    ///
    /// # Panics
    /// When a part's data does not have the size of its box, or a box lies outside its tensor.
    pub fn resume(&self, parts: &mut [PartMut<'_>], peers: &dyn Peers) -> Result<Option<Restored>> {
        let mut rejected = Vec::new();
        for checkpoint in self.candidates(peers)? {
            match self.attempt(&checkpoint, parts, peers)? {
                Ok(restored) => {
                    self.reject(&rejected, peers)?;
                    return Ok(Some(Restored { rejected, ..restored }));
                }
                Err(Objection { failures, is_damage: true, .. }) => {
                    rejected.push(Rejected { checkpoint, failures });
                }
                Err(objection) => return Err(objection.into_error(&checkpoint)),
            }
        }
        let root = self.root().to_owned();
        if rejected.is_empty() { Ok(None) } else { Err(Error::NoCheckpoint { root, rejected }) }
    }

    /// Sets aside what was damaged, once an older one has been restored. Rank 0 does it for all;
    /// they fail together, as a damaged checkpoint that still counts would push out a good one.
    fn reject(&self, rejected: &[Rejected], peers: &dyn Peers) -> Result<()> {
        if rejected.is_empty() {
            return Ok(());
        }
        let set_aside = |rejected: &Rejected| {
            let folder = self.root().join(&rejected.checkpoint);
            match durable::rename(&folder.join(MANIFEST), &folder.join(REJECTED)) {
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(()),
                renamed => renamed.and_then(|()| durable::sync_folder(&folder)),
            }
        };
        let is_lead = peers.rank() == 0;
        let own = if is_lead { rejected.iter().try_for_each(set_aside) } else { Ok(()) };
        match agree(peers, own)? {
            Ok(_) => Ok(()),
            Err(objection) => Err(objection.into_error(&rejected[0].checkpoint)),
        }
    }

    /// Restores one checkpoint by name into `parts`, verified on all ranks.
    ///
    /// Collective; the world may differ from the one that saved. On an error the content of
    /// `parts` is unspecified.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Io`] naming the file, and as [`Store::resume`].
    ///
    /// # Panics
    /// As [`Store::resume`].
    pub fn restore(
        &self,
        checkpoint: &str,
        parts: &mut [PartMut<'_>],
        peers: &dyn Peers,
    ) -> Result<Restored> {
        self.attempt(checkpoint, parts, peers)?
            .map_err(|objection| objection.into_error(checkpoint))
    }

    /// Names of all that was committed, newest first, as rank 0 sees it.
    fn candidates(&self, peers: &dyn Peers) -> Result<Vec<String>> {
        let own = if peers.rank() == 0 { self.committed() } else { Ok(Vec::new()) };
        match agree(peers, own)? {
            Ok(mut lists) => Ok(lists.swap_remove(0)),
            Err(objection) => Err(objection.into_error(&self.root().display().to_string())),
        }
    }

    fn committed(&self) -> Result<Vec<String>> {
        let names = self.scan()?;
        let committed: Vec<_> =
            names.iter().filter(|name| is_committed(&self.folder(name))).collect();
        let is_rejected = |name: &&Name| self.status(name) == Status::Rejected;
        if committed.is_empty()
            && let Some(name) = names.iter().find(is_rejected)
        {
            // To start afresh would hide that there was a state once.
            let reason = format!("set aside as {REJECTED} earlier");
            let failures = vec![RankFailure { rank: 0, reason }];
            let rejected = vec![Rejected { checkpoint: name.to_string(), failures }];
            return Err(Error::NoCheckpoint { root: self.root().to_owned(), rejected });
        }
        Ok(committed.into_iter().map(Name::to_string).collect())
    }

    /// Three gathers, fewer when one finds an objection: manifest, indexes, outcome.
    fn attempt(
        &self,
        checkpoint: &str,
        parts: &mut [PartMut<'_>],
        peers: &dyn Peers,
    ) -> Result<Attempt<Restored>> {
        parts.iter().for_each(|part| part.tensor.check(part.data.len()));
        let started = Instant::now();
        let name = self.parse_name(checkpoint)?;
        let (manifest, shares) = match self.open_together(&name, peers)? {
            Ok(opened) => opened,
            Err(objection) => return Ok(Err(objection)),
        };
        let mut filled = None;
        let outcome = self.fill(&name, &manifest, &shares, parts, peers);
        if let Err(objection) = agree(peers, outcome.map(|found| filled = Some(found)))? {
            return Ok(Err(objection));
        }
        let (bytes_read, rank_state) = filled.expect("no objection, so it was filled here too");
        Ok(Ok(Restored {
            checkpoint: checkpoint.to_owned(),
            step: manifest.step,
            epoch: manifest.epoch,
            state: manifest.state.clone(),
            rank_state,
            manifest,
            rejected: Vec::new(),
            bytes_read,
            elapsed: started.elapsed(),
        }))
    }

    /// The manifest, and the texts of the indexes by the rank that read them.
    fn open_together(
        &self,
        name: &Name,
        peers: &dyn Peers,
    ) -> Result<Attempt<(Manifest, Vec<Vec<String>>)>> {
        let texts = match agree(peers, self.manifest_text(name, peers.rank()))? {
            Ok(texts) => texts,
            Err(objection) => return Ok(Err(objection)),
        };
        let mut manifest = None;
        let share = self
            .parse_manifest(name, texts[0].as_bytes())
            .and_then(|(parsed, _)| self.index_texts(name, manifest.insert(parsed), peers));
        let shares = agree(peers, share)?;
        Ok(shares.map(|shares| (manifest.expect("no objection, so it was parsed"), shares)))
    }

    /// Rank 0 reads the manifest for all, so that all have the same one.
    fn manifest_text(&self, name: &Name, rank: usize) -> Result<String> {
        if rank > 0 {
            return Ok(String::new());
        }
        read_text(&self.folder(name).join(MANIFEST))
    }

    /// Each rank reads some of the indexes for all: every R-th, starting at its own.
    fn index_texts(
        &self,
        name: &Name,
        manifest: &Manifest,
        peers: &dyn Peers,
    ) -> Result<Vec<String>> {
        let patience = self.options().patience;
        let ranks = (peers.rank()..manifest.world).step_by(peers.world());
        ranks
            .map(|rank| patiently(patience, || self.read_index_text(name, manifest, rank)))
            .collect()
    }

    fn fill(
        &self,
        name: &Name,
        manifest: &Manifest,
        shares: &[Vec<String>],
        parts: &mut [PartMut<'_>],
        peers: &dyn Peers,
    ) -> Result<(u64, Option<Value>)> {
        let parse = |rank: usize| {
            let text = &shares[rank % peers.world()][rank / peers.world()];
            self.parse_index(name, manifest, rank, text)
        };
        let indexes = (0..manifest.world).map(parse).collect::<Result<_>>()?;
        let patience = self.options().patience;
        let opened = Opened { store: self, name, manifest, indexes, patience };
        let bytes_read = opened.fill(parts, peers.rank())?;
        let has_own = manifest.world == peers.world();
        let rank_state = if has_own { Some(opened.rank_state(peers.rank())?) } else { None };
        Ok((bytes_read, rank_state))
    }
}
