//! `divide` gives every element to exactly one rank, in nearly equal shares.

use checkpoint::divide;

/// A small generator (Knuth's MMIX constants), so that a failure can be repeated from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

fn random_tensors(random: &mut Random) -> Vec<(String, Vec<usize>)> {
    let shape = |random: &mut Random| {
        let dimensions = random.below(4);
        (0..dimensions).map(|_| [0, 1, 2, 3, 7, 16, 40][random.below(7)]).collect()
    };
    let count = random.below(12);
    (0..count).map(|index| (format!("t.{index}"), shape(random))).collect()
}

#[test]
fn each_element_belongs_to_exactly_one_rank() {
    for seed in 0..500 {
        let mut random = Random(seed);
        let tensors = random_tensors(&mut random);
        let world = 1 + random.below(9);
        let mut owners: Vec<Vec<u8>> =
            tensors.iter().map(|(_, shape)| vec![0; shape.iter().product()]).collect();
        for rank in 0..world {
            for share in divide(&tensors, world, rank) {
                let tensor = tensors.iter().position(|t| t.0 == share.tensor.name).unwrap();
                assert_eq!(share.tensor.elements(), share.elements.len(), "seed {seed}");
                assert!(!share.elements.is_empty(), "seed {seed}");
                let row: usize = share.tensor.shape.iter().skip(1).product();
                let first = share.tensor.offset.first().map_or(0, |offset| offset * row);
                assert_eq!(share.elements.start, first, "seed {seed}: box and range");
                owners[tensor][share.elements].iter_mut().for_each(|count| *count += 1);
            }
        }
        assert!(owners.iter().flatten().all(|&count| count == 1), "seed {seed}: {owners:?}");
    }
}

#[test]
fn shares_differ_by_at_most_one_row() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let tensors = random_tensors(&mut random);
        let world = 1 + random.below(9);
        let size = |shape: &Vec<usize>| shape.iter().product::<usize>();
        let total: usize = tensors.iter().map(|(_, shape)| size(shape)).sum();
        let row = |(_, shape): &(_, Vec<usize>)| size(shape) / shape.first().unwrap_or(&1).max(&1);
        let widest = tensors.iter().map(row).max().unwrap_or(0);
        for rank in 0..world {
            let shares = divide(&tensors, world, rank);
            let own: usize = shares.iter().map(|share| share.elements.len()).sum();
            let (low, high) = (total / world, total.div_ceil(world));
            assert!(own + widest >= low && own <= high + widest, "seed {seed}: {own} of {total}");
        }
    }
}

#[test]
#[should_panic(expected = "rank 2 of 2")]
fn a_rank_beyond_the_world_is_a_bug() {
    divide(&[], 2, 2);
}
