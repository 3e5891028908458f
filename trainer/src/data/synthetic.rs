//! A token stream made from a seed, with structure to learn and a known entropy.
//!
//! Each token falls by hash into one of a few classes and has one hashed bit. The class of the
//! last token and the bit of the token before it choose a row; a row lists K tokens, and the next
//! token is the k-th of them with probability p(k), about 1/k (Zipf). So:
//!
//! - Given the tokens before it, each target has entropy H(p), the same in every row: that is the
//!   floor, in nats per token, exactly. p is a multiple of 1/4096, so it is sampled without error.
//! - K = sqrt(V) puts the floor near 0.4 ln V for every V from 256 to 100,000.
//! - There are at most 64 rows whatever V is, so that loss falls within a few hundred small steps
//!   also with a large vocabulary: first the frequent tokens, then the classes.
//! - Without attention a model cannot know the bit of the token before the last: it stays above
//!   the floor by up to ln 2. Reaching the floor shows that attention works.
//!
//! The first token of a sequence is uniform and the bit before it counts as 0.

use models::rng::{Purpose, Stream};

use super::{Description, Sequences, order::Permutation};

const SLOT_BITS: u32 = 12;
const SLOTS: usize = 1 << SLOT_BITS; // p is a multiple of 1 / SLOTS
const SUCCESSORS_MAX: usize = 512; // keeps each probability above 1 / SLOTS
const CLASSES_MAX: usize = 32;

/// The synthetic source: training draws, or held-out draws of the same language.
#[derive(Debug)]
pub struct Synthetic {
    vocabulary: u64,
    evaluation_sequences: Option<u64>,
    draws: Stream,
    hashes: Stream,
    class_mask: usize,
    successors: usize,
    slots: Box<[u16; SLOTS]>, // random slot -> k
    rows: Vec<u32>,           // (2 x classes, K) tokens
    entropy_floor_nats: f64,
}

impl Synthetic {
    /// Endless training sequences over `vocabulary` tokens.
    pub fn training(seed: u64, vocabulary: usize) -> Self {
        Self::new(seed, vocabulary, None)
    }

    /// `sequences` held-out sequences: the same language, other draws.
    pub fn evaluation(seed: u64, vocabulary: usize, sequences: u64) -> Self {
        Self::new(seed, vocabulary, Some(sequences))
    }

    fn new(seed: u64, vocabulary: usize, evaluation_sequences: Option<u64>) -> Self {
        assert!(vocabulary > 0, "an empty vocabulary");
        let stream = Stream::new(seed, Purpose::Tokens);
        let classes = 1 << (vocabulary / 16).clamp(1, CLASSES_MAX).ilog2();
        let successors = ((vocabulary as f64).sqrt().round() as usize).clamp(1, SUCCESSORS_MAX);
        let (slots, entropy_floor_nats) = zipf(successors);
        Self {
            vocabulary: vocabulary as u64,
            evaluation_sequences,
            draws: stream.child(if evaluation_sequences.is_some() { 2 } else { 1 }),
            hashes: stream.child(3),
            class_mask: classes - 1,
            successors,
            slots,
            rows: successor_rows(2 * classes, successors, vocabulary as u64, stream.child(4)),
            entropy_floor_nats,
        }
    }

    #[cfg(test)]
    pub(super) fn row_of(&self, before: Option<u32>, last: u32) -> usize {
        let hash = |token| self.hashes.bits(u64::from(token));
        self.row(before.map_or(0, hash), hash(last))
    }

    /// Row of the token after `last`, given the hash of the token before that.
    fn row(&self, before_hash: u64, last_hash: u64) -> usize {
        2 * (last_hash as usize & self.class_mask) + (before_hash >> 63) as usize
    }
}

impl Sequences for Synthetic {
    fn fill(&self, index: u64, inputs: &mut [u32], targets: &mut [u32]) {
        assert_eq!(inputs.len(), targets.len(), "inputs and targets differ in length");
        let index = self.evaluation_sequences.map_or(index, |count| index % count);
        let stream = self.draws.child(index);
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

    fn describe(&self) -> Description {
        Description {
            kind: "synthetic",
            sequences_per_epoch: self.evaluation_sequences,
            tokens: None,
            entropy_floor_nats: Some(self.entropy_floor_nats),
            digest: None,
        }
    }
}

/// Zipf's law over `successors` ranks, rounded to multiples of 1 / SLOTS: the rank of each slot,
/// and the entropy of the rounded law in nats.
fn zipf(successors: usize) -> (Box<[u16; SLOTS]>, f64) {
    let total: f64 = (1..=successors).map(|rank| 1.0 / rank as f64).sum();
    let mut slots = Box::new([0; SLOTS]);
    let (mut sum, mut start, mut entropy) = (0.0, 0, 0.0);
    for choice in 0..successors {
        sum += 1.0 / (choice + 1) as f64;
        let end = (sum / total * SLOTS as f64).round() as usize;
        slots[start..end].fill(choice as u16);
        let probability = (end - start) as f64 / SLOTS as f64;
        entropy -= probability * probability.ln();
        start = end;
    }
    assert_eq!(start, SLOTS, "the slots are not all used");
    (slots, entropy)
}

/// For each row, distinct tokens in a random order.
fn successor_rows(rows: usize, successors: usize, vocabulary: u64, stream: Stream) -> Vec<u32> {
    let row = |row| Permutation::new(vocabulary, stream.child(row));
    (0..rows as u64)
        .map(row)
        .flat_map(|row| (0..successors as u64).map(move |choice| row.get(choice) as u32))
        .collect()
}
