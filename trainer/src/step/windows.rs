//! Windows of one buffer that buckets take in turn, so that a rank never holds all weights or all
//! gradients.
//!
//! The order of uses is the same in every micro-batch, so the windows are placed once: time is a
//! circle of slots, a bucket needs memory in some of them, and buckets without a common slot may
//! have the same memory.

use std::ops::Range;

use collectives::BucketPlan;
use models::{Layout, Uses};

use crate::config::Sharded;

/// Need for memory in some slots of a circle.
#[derive(Debug, Clone)]
struct Need {
    len: usize,
    slots: Slots,
}

/// Set of slots of a circle, a bit each.
#[derive(Debug, Clone)]
struct Slots {
    bits: Vec<u64>,
    circle: usize,
}

impl Slots {
    fn contains(&self, slot: usize) -> bool {
        self.bits[slot / 64] >> (slot % 64) & 1 == 1
    }

    fn meets(&self, other: &Self) -> bool {
        self.bits.iter().zip(&other.bits).any(|(own, other)| own & other != 0)
    }

    fn unite(&mut self, other: &Self) {
        self.bits.iter_mut().zip(&other.bits).for_each(|(own, other)| *own |= other);
    }
}

impl Need {
    fn new(len: usize, circle: usize) -> Self {
        Self { len, slots: Slots { bits: vec![0; circle.div_ceil(64)], circle } }
    }

    /// Adds the slots of a range, which may reach over the end of the circle.
    fn add(&mut self, slots: Range<usize>) {
        for slot in slots.map(|slot| slot % self.slots.circle) {
            self.slots.bits[slot / 64] |= 1 << (slot % 64);
        }
    }

    /// Returns the indices of the other needs that have a slot in common.
    fn conflicts(&self, needs: &[Self]) -> Vec<usize> {
        let is_other = |need: &Self| !std::ptr::eq(self, need) && self.slots.meets(&need.slots);
        (0..needs.len()).filter(|&index| is_other(&needs[index])).collect()
    }
}

/// Most beginnings that are tried.
const BEGINNINGS_MAX: usize = 16;

/// Gives each need a range that is free in all of its slots. On a circle it matters where one
/// begins, so several beginnings are tried, in two orders.
fn place(needs: &[Need]) -> Vec<Range<usize>> {
    let conflicts: Vec<Vec<usize>> = needs.iter().map(|need| need.conflicts(needs)).collect();
    let slots = needs.first().map_or(0, |need| need.slots.circle);
    let in_slot = |slot: usize| needs.iter().filter(move |need| need.slots.contains(slot));
    let least = (0..slots).map(|slot| in_slot(slot).map(|need| need.len).sum()).max().unwrap_or(0);
    let placing = Placing { needs, conflicts, least };
    let mut best: Option<Vec<Range<usize>>> = None;
    let stride = needs.len().div_ceil(BEGINNINGS_MAX).max(1);
    for first in (0..needs.len()).step_by(stride) {
        let in_turn: Vec<usize> = (first..needs.len()).chain(0..first).collect();
        let mut longest_first = in_turn.clone();
        longest_first.sort_by_key(|&index| std::cmp::Reverse(needs[index].len));
        let low = placing.in_order(&longest_first, |_| false);
        let in_turn = placing.in_order(&in_turn, |number| number % 2 == 1);
        best = [low, in_turn].into_iter().chain(best).min_by_key(|placed| end(placed));
        if best.as_ref().is_some_and(|placed| end(placed) == least) {
            break;
        }
    }
    best.unwrap_or_default()
}

/// Needs that are given ranges one after the other.
struct Placing<'a> {
    needs: &'a [Need],
    /// The other needs with a slot in common, of each.
    conflicts: Vec<Vec<usize>>,
    /// Length that is needed in the fullest slot: no placement is shorter.
    least: usize,
}

impl Placing<'_> {
    /// Gives each need, in this order, a free range: the first one, or for those that are to be
    /// `high` the last one within the least length, so that the others find room below.
    fn in_order(&self, order: &[usize], high: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
        let mut placed = vec![0..0; self.needs.len()];
        for (number, &index) in order.iter().enumerate() {
            let len = self.needs[index].len;
            let others = self.conflicts[index].iter();
            let mut taken: Vec<_> = others.map(|&other| placed[other].clone()).collect();
            taken.sort_by_key(|range| range.start);
            let last = if high(number) { last_free(&taken, len, self.least) } else { None };
            let start = last.unwrap_or_else(|| first_free(&taken, len));
            placed[index] = start..start + len;
        }
        placed
    }
}

/// Returns the start of the first range that is not taken; the taken ones are sorted.
fn first_free(taken: &[Range<usize>], len: usize) -> usize {
    let after = |start: usize, range: &Range<usize>| {
        if start + len <= range.start { start } else { start.max(range.end) }
    };
    taken.iter().fold(0, after)
}

/// Returns the start of the last range before `limit` that is not taken, if there is one.
fn last_free(taken: &[Range<usize>], len: usize, limit: usize) -> Option<usize> {
    let before = |end: usize, range: &Range<usize>| {
        if end >= range.end + len { end } else { end.min(range.start) }
    };
    taken.iter().rev().fold(limit, before).checked_sub(len)
}

/// Returns the end of the last range.
fn end(ranges: &[Range<usize>]) -> usize {
    ranges.iter().map(|range| range.end).max().unwrap_or(0)
}

/// Read of a bucket's weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Use {
    pub(super) bucket: usize,
    /// Elements of the windows' buffer.
    pub(super) window: Range<usize>,
}

/// Windows of the weights of one micro-batch, in the order of reads. A bucket is gathered while the
/// ones before it are read, and released when the next one is read.
#[derive(Debug, Clone)]
pub(crate) struct WeightWindows {
    pub(super) uses: Vec<Use>,
    /// Number of uses in forward, which is all of an evaluation.
    pub(super) forward: usize,
    /// Buckets that are gathered ahead of the one that is read.
    pub(super) ahead: usize,
    /// True if windows are released after use; otherwise each bucket has its own.
    pub(super) releases: bool,
    /// Elements of all windows.
    pub(super) len: usize,
}

impl WeightWindows {
    /// Places windows for the buckets of a layout's uses.
    pub(super) fn new(uses: &Uses, plan: &BucketPlan, ahead: usize, releases: bool) -> Self {
        let bucket_of = |segment: &usize| {
            plan.buckets.iter().position(|bucket| bucket.segments.contains(segment))
        };
        let mut buckets: Vec<usize> = uses.forward.iter().filter_map(bucket_of).collect();
        buckets.dedup();
        let forward = buckets.len();
        buckets.extend(uses.backward.iter().filter_map(bucket_of));
        buckets.dedup();
        let windows = if releases {
            windows_in_turn(&buckets, plan, ahead)
        } else {
            buckets.iter().map(|&bucket| plan.buckets[bucket].range.clone()).collect()
        };
        let len = end(&windows);
        let of_window = |(bucket, window)| Use { bucket, window };
        let uses = buckets.into_iter().zip(windows).map(of_window).collect();
        Self { uses, forward, ahead, releases, len }
    }

    /// Returns the buckets of a step that are still resident from an earlier use when they are to
    /// be gathered, each as often as that happens.
    #[cfg(test)]
    pub(super) fn kept(&self, micro_batches: usize) -> Vec<usize> {
        let buckets: Vec<usize> = self.uses.iter().map(|it| it.bucket).collect();
        let all = buckets.repeat(micro_batches);
        let earlier = |at: usize| all[..at].iter().rposition(|bucket| *bucket == all[at]);
        let is_kept = |at: &usize| earlier(*at).is_some_and(|then| at - then <= self.ahead + 1);
        (0..all.len()).filter(is_kept).map(|at| all[at]).collect()
    }

    /// Returns the uses that are resident while `position` is read, in a micro-batch that another
    /// one follows or not.
    pub(super) fn resident(&self, position: usize, end: usize, follows: bool) -> Resident<'_> {
        Resident { plan: self, next: position, end, rest: self.ahead + 1, follows }
    }
}

/// Uses that are resident at the same time, in order.
#[derive(Debug)]
pub(super) struct Resident<'a> {
    plan: &'a WeightWindows,
    next: usize,
    end: usize,
    rest: usize,
    follows: bool,
}

impl<'a> Iterator for Resident<'a> {
    type Item = &'a Use;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.end && self.follows {
            self.next = 0;
            self.follows = false;
        }
        if self.rest == 0 || self.next == self.end {
            return None;
        }
        self.rest -= 1;
        self.next += 1;
        self.plan.uses.get(self.next - 1)
    }
}

/// Returns the windows of buckets that are read in this order, again and again. A slot is the time
/// in which one of them is read. A bucket that is read again before its window would be released
/// and gathered anew keeps it.
fn windows_in_turn(buckets: &[usize], plan: &BucketPlan, ahead: usize) -> Vec<Range<usize>> {
    let slots = buckets.len();
    let mut needs: Vec<Need> = Vec::new();
    // The need that each use is of.
    let mut need_of: Vec<usize> = Vec::new();
    for (position, bucket) in buckets.iter().enumerate() {
        let earlier = buckets[..position].iter().rposition(|other| other == bucket);
        let kept = earlier.filter(|earlier| position - earlier <= ahead + 1);
        let need = kept.map_or(needs.len(), |earlier| need_of[earlier]);
        if need == needs.len() {
            needs.push(Need::new(plan.buckets[*bucket].range.len(), slots));
        }
        needs[need].add(position + slots - ahead.min(slots - 1)..position + slots + 1);
        need_of.push(need);
    }
    for (position, bucket) in buckets.iter().enumerate() {
        let last = buckets.iter().rposition(|other| other == bucket).unwrap_or(position);
        let first = buckets.iter().position(|other| other == bucket).unwrap_or(position);
        let is_kept = first + slots - last <= ahead + 1;
        if position == last && is_kept && need_of[first] != need_of[last] {
            let (kept, joined) = (need_of[first], need_of[last]);
            let empty = Need::new(0, slots);
            let joined_need = std::mem::replace(&mut needs[joined], empty);
            needs[kept].slots.unite(&joined_need.slots);
            need_of.iter_mut().filter(|need| **need == joined).for_each(|need| *need = kept);
        }
    }
    let placed = place(&needs);
    need_of.into_iter().map(|need| placed[need].clone()).collect()
}

/// Windows of the gradients of each bucket.
#[derive(Debug, Clone)]
pub(super) struct GradientWindows {
    /// Elements of the windows' buffer, for each bucket.
    pub(super) ranges: Vec<Range<usize>>,
    /// Elements of all windows.
    pub(super) len: usize,
    /// True if buckets take windows in turn; otherwise each has its own, at its flat position.
    pub(super) are_shared: bool,
}

impl GradientWindows {
    /// Places the windows of buckets as the gradients are sharded.
    pub(super) fn of(sharded: Sharded, layout: &Layout, plan: &BucketPlan) -> Self {
        if sharded >= Sharded::Gradients { Self::in_turn(layout, plan) } else { Self::whole(plan) }
    }

    /// Gives each bucket a window of its own.
    fn whole(plan: &BucketPlan) -> Self {
        let ranges = plan.buckets.iter().map(|bucket| bucket.range.clone()).collect();
        Self { ranges, len: plan.len, are_shared: false }
    }

    /// Places windows that are written while the one before is reduced. A slot is the time in which
    /// one bucket becomes complete; the one with the head's matrix is written from the first on.
    fn in_turn(layout: &Layout, plan: &BucketPlan) -> Self {
        let slots = plan.buckets.len();
        let need = |(index, bucket): (usize, &collectives::Bucket)| {
            let has_head = bucket.segments.contains(&layout.head_segment());
            let opened = if has_head { 0 } else { index };
            let mut need = Need::new(bucket.range.len(), slots);
            // The last one is reduced during the next forward, which writes none.
            need.add(opened..(index + 2).min(slots));
            need
        };
        let needs: Vec<Need> = plan.buckets.iter().enumerate().map(need).collect();
        let ranges = place(&needs);
        Self { len: end(&ranges), ranges, are_shared: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::step::placed_layout;

    const AHEAD: [usize; 4] = [0, 1, 2, 100];

    fn layouts() -> impl Iterator<Item = (Layout, BucketPlan)> {
        // Tied and not; a bucket for each segment, several segments to a bucket, one bucket.
        ["smoke", "llama-smoke"].into_iter().flat_map(|workload| {
            [1, 300_000, 1_u64 << 40].map(|bytes| {
                let deep = format!("collectives.bucket_bytes={bytes}");
                let config = Config::load(workload, &["model.layers=6".into(), deep]).unwrap();
                placed_layout(&config, 2)
            })
        })
    }

    fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
        a.start < b.end && b.start < a.end
    }

    /// Follows two micro-batches and an evaluation.
    #[test]
    fn windows_that_are_resident_together_do_not_overlap() {
        for (layout, plan) in layouts() {
            for ahead in AHEAD {
                let windows = WeightWindows::new(&layout.uses(), &plan, ahead, true);
                let uses = windows.uses.len();
                for (end, follows) in [(uses, true), (uses, false), (windows.forward, false)] {
                    for position in 0..end {
                        let resident: Vec<_> = windows.resident(position, end, follows).collect();
                        for (index, one) in resident.iter().enumerate() {
                            assert_eq!(one.window.len(), plan.buckets[one.bucket].range.len());
                            assert!(one.window.end <= windows.len);
                            for other in &resident[..index] {
                                let is_same = one.bucket == other.bucket;
                                assert_eq!(overlap(&one.window, &other.window), is_same);
                                assert!(!is_same || one.window == other.window);
                            }
                        }
                    }
                }
            }
        }
    }

    /// A bucket that stays resident from one read to the next must not move.
    #[test]
    fn a_bucket_that_stays_keeps_its_window() {
        for (layout, plan) in layouts() {
            for ahead in AHEAD {
                let windows = WeightWindows::new(&layout.uses(), &plan, ahead, true);
                let uses = windows.uses.len();
                for position in 0..uses {
                    let now: Vec<_> = windows.resident(position, uses, true).collect();
                    let next: Vec<_> =
                        windows.resident((position + 1) % uses, uses, true).collect();
                    for one in &now {
                        let stays = next.iter().find(|other| other.bucket == one.bucket);
                        assert!(stays.is_none_or(|other| other.window == one.window));
                    }
                }
            }
        }
    }

    #[test]
    fn windows_of_weights_are_as_large_as_the_largest_neighbours() {
        let (layout, plan) = layouts().next().unwrap();
        let windows = |ahead, releases| WeightWindows::new(&layout.uses(), &plan, ahead, releases);
        let bytes = |bucket: usize| plan.buckets[bucket].range.len();
        let neighbours = |pair: &[Use]| bytes(pair[0].bucket) + bytes(pair[1].bucket);
        let one = windows(1, true);
        let largest = one.uses.windows(2).map(neighbours).max().unwrap();
        assert_eq!(one.len, largest);
        assert_eq!(windows(0, true).len, (0..plan.buckets.len()).map(bytes).max().unwrap());
        assert_eq!(windows(1, false).len, plan.len);
    }

    /// Two neighbours at any time, although the embeddings are larger than a block.
    #[test]
    fn windows_of_a_large_model_are_two_neighbours() {
        for workload in ["llama3-8b", "llama3-70b", "gpt3-175b"] {
            let (layout, plan) = placed_layout(&Config::load(workload, &[]).unwrap(), 8);
            let len = |index: usize| plan.buckets[index].range.len();
            let largest = (1..plan.buckets.len()).map(|index| len(index - 1) + len(index)).max();
            let weights = WeightWindows::new(&layout.uses(), &plan, 1, true);
            assert_eq!(Some(weights.len), largest, "weights of {workload}");
            let gradients = GradientWindows::in_turn(&layout, &plan);
            let is_tied = layout.head_segment() != 0;
            let tied = if is_tied { len(plan.buckets.len() - 1) } else { 0 };
            let most = tied + 2 * len(1).max(len(0));
            assert!(gradients.len <= most, "gradients of {workload}: {}, {most}", gradients.len);
        }
    }

    #[test]
    fn windows_of_gradients_that_are_in_use_together_do_not_overlap() {
        for (layout, plan) in layouts() {
            let windows = GradientWindows::in_turn(&layout, &plan);
            let ranges = &windows.ranges;
            let buckets = ranges.len();
            assert!(ranges.windows(2).all(|pair| !overlap(&pair[0], &pair[1])));
            let head =
                |bucket: &collectives::Bucket| bucket.segments.contains(&layout.head_segment());
            let head = plan.buckets.iter().position(head).unwrap();
            let before = &ranges[..head];
            assert!(before.iter().all(|range| !overlap(range, &ranges[head])), "it stays open");
            let whole = GradientWindows::whole(&plan);
            assert!(windows.len <= whole.len && whole.len == plan.len);
            assert!(buckets < 5 || windows.len < plan.len);
        }
    }
}
