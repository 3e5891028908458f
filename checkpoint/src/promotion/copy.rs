//! Copying the files of saved ranks: each shard verified while it is read, the index last.

use std::io::ErrorKind::{InvalidData, NotFound};
use std::time::Instant;

use super::worker::{Outcome, Setback, Source, Worker};
use crate::failpoints::Failpoint;
use crate::format::index::{ShardEntry, index_file};
use crate::format::limits::INDEX_BYTES_MAX;
use crate::restore::ShardReader;

impl Worker {
    /// Copies what is not on the target of this process's share. Between shards `is_current` tells
    /// whether to go on.
    pub(super) fn copy_share(&self, source: &Source, is_current: &dyn Fn() -> Outcome) -> Outcome {
        let started = Instant::now();
        let mut ranks = self.own_ranks(&source.manifest);
        let copied = ranks.try_for_each(|rank| self.copy_rank(source, rank, is_current));
        let seconds = started.elapsed().as_secs_f64();
        self.shared.update(|status| status.seconds += seconds);
        copied
    }

    fn copy_rank(&self, source: &Source, rank: usize, is_current: &dyn Fn() -> Outcome) -> Outcome {
        let Source { name, manifest, .. } = source;
        let text = self.from().index_text(name, manifest, rank).map_err(Setback::of_read)?;
        let index = self.from().parse_index(name, manifest, rank, &text);
        let index = index.map_err(Setback::of_read)?;
        let key = manifest.rank_key(name, rank, &index_file(rank));
        match self.to().tier().read(&key, INDEX_BYTES_MAX) {
            Ok(found) if found == text.as_bytes() => return Ok(()),
            Ok(_) => {}
            // Nothing, or not a file of ours: it is written below.
            Err(error) if matches!(error.source.kind(), NotFound | InvalidData) => {}
            Err(error) => return Err(Setback::of_target(error)),
        }
        for shard in &index.files {
            is_current()?;
            let key = manifest.rank_key(name, rank, &shard.file);
            if !self.has_shard(&key, shard)? {
                self.copy_shard(&key, shard)?;
                self.failpoints.hit_in_promotion(Failpoint::MidPromotion, name.step);
            }
        }
        is_current()?;
        self.throttle(text.len() as u64)?;
        self.to().tier().replace(&key, text.as_bytes()).map_err(Setback::of_target)?;
        self.count(text.len());
        Ok(())
    }

    /// Whether a shard is on the target. Files appear there as a whole, and only promotions of this
    /// checkpoint write them.
    fn has_shard(&self, key: &str, shard: &ShardEntry) -> Outcome<bool> {
        match self.to().tier().open(key) {
            Ok(found) => Ok(found.size_bytes() == shard.bytes),
            Err(error) if error.source.kind() == NotFound => Ok(false),
            Err(error) => Err(Setback::of_target(error)),
        }
    }

    fn copy_shard(&self, key: &str, shard: &ShardEntry) -> Outcome {
        let reader = ShardReader::open(self.from().tier(), key, shard);
        let reader = reader.map_err(Setback::of_read)?;
        let tier = self.to().tier();
        tier.delete(key).map_err(Setback::of_target)?; // one of a wrong size
        let mut upload = tier.create(key).map_err(Setback::of_target)?;
        let mut send = |bytes: &[u8]| {
            self.throttle(bytes.len() as u64)?;
            upload.write(bytes).map_err(Setback::of_target)?;
            self.count(bytes.len());
            Ok(())
        };
        send(&reader.header)?;
        let mut buffer = Vec::new();
        for chunk in 0..shard.chunk_crc64.len() as u64 {
            reader.read_chunk(chunk, &mut buffer).map_err(Setback::of_read)?;
            send(&buffer)?;
        }
        upload.finish().map_err(Setback::of_target)
    }

    fn count(&self, bytes: usize) {
        self.shared.update(|status| status.bytes += bytes as u64);
    }
}
