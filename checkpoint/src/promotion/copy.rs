//! Copying the files of saved ranks: each shard verified while it is read, the index last.

use std::time::{Duration, Instant};

use super::worker::{CopyError, Outcome, Source, Worker};
use crate::error::{Error, Result};
use crate::failpoints::Failpoint;
use crate::format::index::{ShardEntry, index_file};
use crate::format::limits::INDEX_BYTES_MAX;
use crate::format::name::CheckpointName;
use crate::restore::ShardReader;

impl Worker {
    /// Returns the saved ranks whose files this process copies.
    pub(super) fn saved_ranks(&self, name: &CheckpointName) -> Vec<usize> {
        self.shared.assigned(name).unwrap_or_else(|| vec![self.share.rank])
    }

    /// Copies the files of this process's share that are not on the target. Between shards
    /// `is_current` returns whether to continue.
    pub(super) fn copy_share(&self, source: &Source, is_current: &dyn Fn() -> Outcome) -> Outcome {
        let started = Instant::now();
        let mut ranks = self.saved_ranks(&source.name).into_iter();
        let copied = ranks.try_for_each(|rank| self.copy_rank(source, rank, is_current));
        let seconds = started.elapsed().as_secs_f64();
        self.shared.update(|status| status.seconds += seconds);
        copied
    }

    fn copy_rank(&self, source: &Source, rank: usize, is_current: &dyn Fn() -> Outcome) -> Outcome {
        let Source { name, manifest, .. } = source;
        let index = self.from().read_index(name, manifest, rank).map_err(CopyError::of_read)?;
        let key = manifest.rank_key(name, rank, &index_file(rank));
        let has_index = self.has_index(&key, &index.text)?;
        if has_index && self.is_intact(&key) {
            return Ok(());
        }
        for shard in &index.value.files {
            is_current()?;
            let key = manifest.rank_key(name, rank, &shard.file);
            if !self.has_shard(&key, shard)? {
                self.copy_shard(&key, shard)?;
                self.failpoints.hit_in_promotion(Failpoint::MidPromotion, name.step);
            }
            self.note_intact(key);
        }
        is_current()?;
        if !has_index {
            self.copy_index(&key, &index.text)?;
        }
        self.note_intact(key);
        Ok(())
    }

    fn has_index(&self, key: &str, text: &str) -> Outcome<bool> {
        let found =
            unless_damaged(self.to().tier().read(key, INDEX_BYTES_MAX).map_err(Error::from))?;
        Ok(found.is_some_and(|found| found == text.as_bytes()))
    }

    fn copy_index(&self, key: &str, text: &str) -> Outcome {
        self.throttle(text.len() as u64)?;
        self.to().tier().replace(key, text.as_bytes()).map_err(CopyError::of_target)?;
        self.count(text.len());
        Ok(())
    }

    /// Returns whether a shard is on the target. Bytes of other writers are read: an earlier
    /// attempt, a power cut or another program may have left other bytes of the same size.
    fn has_shard(&self, key: &str, shard: &ShardEntry) -> Outcome<bool> {
        let opened = unless_damaged(ShardReader::open(self.to(), key, shard))?;
        let Some(reader) = opened else { return Ok(false) };
        if self.is_intact(key) {
            return Ok(true);
        }
        let mut buffer = Vec::new();
        for chunk in 0..shard.chunk_crc64.len() as u64 {
            self.pause(Duration::ZERO)?;
            if unless_damaged(reader.read_chunk(chunk, &mut buffer))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn copy_shard(&self, key: &str, shard: &ShardEntry) -> Outcome {
        let reader = ShardReader::open(self.from(), key, shard).map_err(CopyError::of_read)?;
        let tier = self.to().tier();
        tier.delete(key).map_err(CopyError::of_target)?; // one with other bytes
        let mut upload = tier.create(key).map_err(CopyError::of_target)?;
        let mut send = |bytes: &[u8]| {
            self.throttle(bytes.len() as u64)?;
            upload.write(bytes).map_err(CopyError::of_target)?;
            self.count(bytes.len());
            Ok(())
        };
        send(&reader.header)?;
        let mut buffer = Vec::new();
        for chunk in 0..shard.chunk_crc64.len() as u64 {
            reader.read_chunk(chunk, &mut buffer).map_err(CopyError::of_read)?;
            send(&buffer)?;
        }
        upload.finish().map_err(CopyError::of_target)
    }

    fn is_intact(&self, key: &str) -> bool {
        self.intact.borrow().contains(key)
    }

    fn note_intact(&self, key: String) {
        self.intact.borrow_mut().insert(key);
    }

    fn count(&self, bytes: usize) {
        self.shared.update(|status| status.bytes += bytes as u64);
    }
}

/// Result of a read from the target; `None` where nothing is there, or other bytes are.
fn unless_damaged<T>(read: Result<T>) -> Outcome<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_damage() => Ok(None),
        Err(error) => Err(CopyError::of_target(error)),
    }
}
