//! Synthetic token stream generated from a seed, with structure to learn and a known entropy.
//!
//! A hash assigns each token to one of a few classes and gives it one bit. The class of the last
//! token and the bit of the token before it select a row; a row lists K tokens, and the next token
//! is the k-th of them with probability p(k), about 1/k (Zipf). So:
//!
//! - Given the tokens before it, each target has entropy H(p), the same in every row: that is the
//!   floor, in nats per token, exactly. p is a multiple of 1/4096, so it is sampled without error.
//! - K = sqrt(V) puts the floor near 0.4 ln V for every V from 256 to 100,000.
//! - There are at most 64 rows whatever V is, so that loss falls within a few hundred small steps
//!   also with a large vocabulary: a model first learns the frequent tokens, then the classes.
//! - Without attention a model cannot know the bit of the token before the last: it stays above the
//!   floor by up to ln 2. Reaching the floor shows that attention works.
//!
//! The first token of a sequence is uniform, and the bit before it counts as 0.

use models::rng::{Purpose, Stream};

use super::permutation::Permutation;
use super::sequences::Sequences;

const SLOT_BITS: u32 = 12;
const SLOTS: usize = 1 << SLOT_BITS; // p is a multiple of 1 / SLOTS
const SUCCESSORS_MAX: usize = 512; // so that each probability is above 1 / SLOTS
const CLASSES_MAX: usize = 32;

/// Synthetic source: training samples, or held-out samples of the same language.
#[derive(Debug)]
pub struct Synthetic {
    vocabulary: u64,
    evaluation_sequences: Option<u64>,
    samples: Stream,
    hashes: Stream,
    class_mask: usize,
    successors: usize,
    slots: Box<[u16; SLOTS]>, // random slot -> k
    rows: Vec<u32>,           // (2 x classes, K) tokens
    entropy_floor_nats: f64,
}

impl Synthetic {
    /// Returns endless training sequences over `vocabulary` tokens.
    pub fn training(seed: u64, vocabulary: usize) -> Self {
        Self::new(seed, vocabulary, None)
    }

    /// Returns `sequences` held-out sequences: the same language, other samples.
    pub fn evaluation(seed: u64, vocabulary: usize, sequences: u64) -> Self {
        Self::new(seed, vocabulary, Some(sequences))
    }

    fn new(seed: u64, vocabulary: usize, evaluation_sequences: Option<u64>) -> Self {
        assert!(vocabulary > 0, "an empty vocabulary");
        let stream = Stream::new(seed, Purpose::Tokens);
        let classes = 1 << (vocabulary / 16).clamp(1, CLASSES_MAX).ilog2();
        let successors = ((vocabulary as f64).sqrt().round() as usize).clamp(1, SUCCESSORS_MAX);
        let zipf = Zipf::new(successors);
        Self {
            vocabulary: vocabulary as u64,
            evaluation_sequences,
            samples: stream.child(if evaluation_sequences.is_some() { 2 } else { 1 }),
            hashes: stream.child(3),
            class_mask: classes - 1,
            successors,
            slots: zipf.slots,
            rows: successor_rows(2 * classes, successors, vocabulary as u64, stream.child(4)),
            entropy_floor_nats: zipf.entropy_nats,
        }
    }

    /// Returns the row of the token after `last`, given the token before `last`.
    #[cfg(test)]
    pub(super) fn row_of(&self, before: Option<u32>, last: u32) -> usize {
        let hash = |token| self.hashes.bits(u64::from(token));
        self.row(before.map_or(0, hash), hash(last))
    }

    /// Returns the row of the token after `last`, given the hash of the token before `last`.
    fn row(&self, before_hash: u64, last_hash: u64) -> usize {
        2 * (last_hash as usize & self.class_mask) + (before_hash >> 63) as usize
    }
}

impl Sequences for Synthetic {
    fn fill(&self, index: u64, inputs: &mut [u32], targets: &mut [u32]) {
        assert_eq!(inputs.len(), targets.len(), "inputs and targets differ in length");
        let index = self.evaluation_sequences.map_or(index, |count| index % count);
        let stream = self.samples.child(index);
        let mut token = stream.below(0, self.vocabulary) as u32;
        let mut before_hash = 0;
        let mut bits = 0;
        for (position, (input, target)) in inputs.iter_mut().zip(targets).enumerate() {
            bits =
                if position % 4 == 0 { stream.bits(1 + position as u64 / 4) } else { bits >> 16 };
            let hash = self.hashes.bits(u64::from(token));
            let choice = usize::from(self.slots[bits as usize % SLOTS]);
            *input = token;
            token = self.rows[self.row(before_hash, hash) * self.successors + choice];
            *target = token;
            before_hash = hash;
        }
    }

    fn sequences_per_epoch(&self) -> Option<u64> {
        self.evaluation_sequences
    }

    fn entropy_floor_nats(&self) -> Option<f64> {
        Some(self.entropy_floor_nats)
    }
}

/// Zipf's law, rounded to multiples of 1 / SLOTS.
struct Zipf {
    /// Successor that each slot selects.
    slots: Box<[u16; SLOTS]>,
    /// Entropy of the rounded law.
    entropy_nats: f64,
}

impl Zipf {
    fn new(successors: usize) -> Self {
        let total: f64 = (1..=successors).map(|rank| 1.0 / rank as f64).sum();
        let mut slots = Box::new([0; SLOTS]);
        let mut sum = 0.0;
        let mut start = 0;
        let mut entropy_nats = 0.0;
        for choice in 0..successors {
            sum += 1.0 / (choice + 1) as f64;
            let end = (sum / total * SLOTS as f64).round() as usize;
            slots[start..end].fill(choice as u16);
            let probability = (end - start) as f64 / SLOTS as f64;
            entropy_nats -= probability * probability.ln();
            start = end;
        }
        assert_eq!(start, SLOTS, "not all slots are used");
        Self { slots, entropy_nats }
    }
}

/// Returns distinct tokens in a random order for each row.
fn successor_rows(rows: usize, successors: usize, vocabulary: u64, stream: Stream) -> Vec<u32> {
    let row = |row| Permutation::new(vocabulary, stream.child(row));
    (0..rows as u64)
        .map(row)
        .flat_map(|row| (0..successors as u64).map(move |choice| row.get(choice) as u32))
        .collect()
}
