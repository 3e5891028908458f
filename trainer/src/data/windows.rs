//! Several token files as one stream, cut into windows and served in a seeded order.

use std::{path::Path, sync::Arc};

use models::rng::{Purpose, Stream};

use super::{
    DataError, Description, Sequences,
    order::Permutation,
    token_file::{Scan, TokenFile},
};

/// Token files, one after the other.
#[derive(Debug)]
pub(super) struct TokenStream {
    files: Vec<TokenFile>,
    starts: Vec<u64>, // position of each file's first token, and the end of the last
    scans: Vec<Scan>,
}

impl TokenStream {
    /// Opens, scans and checks the files, in this order.
    pub(super) fn open(
        names: &[String],
        base: &Path,
        vocabulary: usize,
    ) -> Result<Self, DataError> {
        let (mut files, mut starts, mut scans) = (Vec::new(), vec![0], Vec::new());
        for name in names {
            let file = TokenFile::open(&base.join(name))?;
            let scan = file.scan();
            file.check_vocabulary(&scan, vocabulary)?;
            starts.push(starts[starts.len() - 1] + file.layout.tokens);
            files.push(file);
            scans.push(scan);
        }
        Ok(Self { files, starts, scans })
    }

    /// Tokens in all files.
    pub(super) fn tokens(&self) -> u64 {
        self.starts[self.files.len()]
    }

    /// Adds to a hash what the files hold, without their names.
    pub(super) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        for (file, scan) in self.files.iter().zip(&self.scans) {
            let line = format!("{:?} {}\n", file.layout.token_type, scan.digest);
            hasher.update(line.as_bytes());
        }
    }

    /// Whole windows of `sequence_tokens` inputs, each with one more token as its last target.
    pub(super) fn windows(&self, sequence_tokens: usize) -> u64 {
        self.tokens().saturating_sub(1) / sequence_tokens as u64
    }

    /// The error for a stream with fewer than `windows` windows.
    pub(super) fn check_windows(
        &self,
        windows: u64,
        sequence_tokens: usize,
        reason: String,
    ) -> Result<(), DataError> {
        if self.windows(sequence_tokens) >= windows {
            return Ok(());
        }
        Err(DataError::TooFewTokens {
            paths: self.files.iter().map(|file| file.path.clone()).collect(),
            needed: windows * sequence_tokens as u64 + 1,
            found: self.tokens(),
            reason,
        })
    }

    /// Copies tokens from position `start` on, across files where need be.
    fn read(&self, mut start: u64, mut out: &mut [u32]) {
        let mut file = self.starts.partition_point(|first| *first <= start) - 1;
        while !out.is_empty() {
            let left = self.starts[file + 1] - start;
            let (head, tail) = out.split_at_mut(out.len().min(left as usize));
            self.files[file].read(start - self.starts[file], head);
            start += head.len() as u64;
            out = tail;
            file += 1;
        }
    }
}

/// Windows `first..first + count` of a stream.
///
/// Window w has inputs `[w T, w T + T)` and targets one further, so windows share no input.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) stream: Arc<TokenStream>,
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) sequence_tokens: usize,
    /// Seed of the order; each epoch has its own. Without one, the order of the files.
    pub(super) seed: Option<u64>,
    pub(super) digest: String,
}

impl Windows {
    /// The window of a global sequence.
    fn window(&self, index: u64) -> u64 {
        let (epoch, position) = (index / self.count, index % self.count);
        let position = self.seed.map_or(position, |seed| {
            let stream = Stream::new(seed, Purpose::Order).child(epoch);
            Permutation::new(self.count, stream).get(position)
        });
        self.first + position
    }
}

impl Sequences for Windows {
    fn fill(&self, index: u64, inputs: &mut [u32], targets: &mut [u32]) {
        assert_eq!(inputs.len(), self.sequence_tokens, "inputs are not one sequence");
        assert_eq!(targets.len(), self.sequence_tokens, "targets are not one sequence");
        let start = self.window(index) * self.sequence_tokens as u64;
        self.stream.read(start, inputs);
        self.stream.read(start + 1, targets);
    }

    fn describe(&self) -> Description {
        Description {
            kind: "files",
            sequences_per_epoch: Some(self.count),
            tokens: Some(self.count * self.sequence_tokens as u64),
            entropy_floor_nats: None,
            digest: Some(self.digest.clone()),
        }
    }
}
