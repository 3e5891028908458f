//! Division of a flat buffer into messages.

use std::ops::Range;

/// A contiguous slice of the flat buffer that is reduced as one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Elements of the padded flat buffer. The padding is at the end.
    pub range: Range<usize>,
    /// Indices of the segments in it.
    pub segments: Range<usize>,
}

impl Bucket {
    /// The part that `rank` of `world` owns under a sharded optimizer, in elements of the flat
    /// buffer.
    pub fn part(&self, rank: usize, world: usize) -> Range<usize> {
        let len = self.range.len() / world;
        let start = self.range.start + rank * len;
        start..start + len
    }
}

/// Positions of segments in the padded flat buffer, and the buckets over them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPlan {
    /// Start of each segment, in elements; each a multiple of `align`.
    pub starts: Vec<usize>,
    /// Length of the padded flat buffer, in elements.
    pub len: usize,
    /// Buckets in ascending order; together they are the whole buffer.
    pub buckets: Vec<Bucket>,
}

impl BucketPlan {
    /// Groups segments, given in order of readiness, into buckets for `world` ranks.
    ///
    /// A bucket ends with the segment with which it reaches `bucket_elements`, so that it can be
    /// reduced as soon as that segment is ready. Every bucket is padded to split into `world` equal
    /// parts, each a multiple of `align` elements.
    ///
    /// # Panics
    /// Panics if `world` or `align` is 0.
    pub fn new(segment_lens: &[usize], world: usize, bucket_elements: usize, align: usize) -> Self {
        assert!(world > 0 && align > 0, "world {world}, align {align}");
        let mut plan = Self { starts: Vec::new(), len: 0, buckets: Vec::new() };
        let mut first_segment = 0;
        let mut start = 0;
        let mut end: usize = 0;
        for (segment, len) in segment_lens.iter().enumerate() {
            let segment_start = end.next_multiple_of(align);
            plan.starts.push(segment_start);
            end = segment_start + len;
            let is_last = segment + 1 == segment_lens.len();
            if end - start >= bucket_elements || is_last {
                end = start + (end - start).next_multiple_of(world * align);
                let segments = first_segment..segment + 1;
                plan.buckets.push(Bucket { range: start..end, segments });
                first_segment = segment + 1;
                start = end;
            }
        }
        plan.len = end;
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_with_a_segment_and_are_padded_for_the_world() {
        let plan = BucketPlan::new(&[100, 30, 500, 7], 3, 120, 10);
        assert_eq!(plan.starts, [0, 100, 150, 660]);
        let bucket = |range, segments| Bucket { range, segments };
        assert_eq!(
            plan.buckets,
            [bucket(0..150, 0..2), bucket(150..660, 2..3), bucket(660..690, 3..4)]
        );
        assert_eq!(plan.len, 690);
        assert_eq!(plan.buckets[1].part(2, 3), 490..660);
    }

    #[test]
    fn plans_of_many_shapes_are_valid() {
        let lens: Vec<usize> = (0..40).map(|i| (i * i * 37) % 1000).collect();
        for world in 1..=5 {
            for bucket_elements in [0, 1, 500, 5000, usize::MAX] {
                for align in [1, 16, 128] {
                    check(
                        &BucketPlan::new(&lens, world, bucket_elements, align),
                        &lens,
                        world,
                        align,
                    );
                }
            }
        }
        assert_eq!(BucketPlan::new(&[], 2, 10, 8).len, 0);
    }

    fn check(plan: &BucketPlan, lens: &[usize], world: usize, align: usize) {
        let mut end = 0;
        let mut segment = 0;
        for bucket in &plan.buckets {
            assert_eq!((bucket.range.start, bucket.segments.start), (end, segment), "no gap");
            assert!(bucket.range.len().is_multiple_of(world * align));
            for index in bucket.segments.clone() {
                let start = plan.starts[index];
                assert!(start >= end && start.is_multiple_of(align));
                end = start + lens[index];
            }
            assert!(end <= bucket.range.end, "segments lie inside their bucket");
            assert!(bucket.range.end - end < world * align, "no more padding than needed");
            end = bucket.range.end;
            segment = bucket.segments.end;
        }
        assert_eq!((plan.len, lens.len()), (end, segment));
    }
}
